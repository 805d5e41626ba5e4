package topology

import (
	"regexp"
	"strings"
	"testing"
)

// Every stream says how it is read, in full.
func TestEveryStreamSaysHowItIsRead(t *testing.T) {
	topo, err := New(DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range topo.Streams {
		r := s.Reading()
		if r.WrittenBy == "" || len(r.Keys) == 0 || r.Order == "" || r.Duplicates == "" {
			t.Errorf("%s: its case in Reading lacks who writes it, its keys, its order or its duplicates", s.Name)
		}
		if s.Table != (r.Stands != "") {
			t.Errorf("%s: table is %v, and what stands is %q: only a table's reader must choose", s.Name, s.Table, r.Stands)
		}
		for _, text := range []string{r.WrittenBy, r.Order, r.Duplicates, r.Stands} {
			if strings.HasSuffix(text, ".") {
				t.Errorf("%s: Guide ends %q with a full stop of its own", s.Name, text)
			}
		}
	}
}

// A stream's groups and who writes it agree.
func TestReadingNamesItsWriters(t *testing.T) {
	topo, _ := New(DefaultConfig())
	for _, g := range topo.Groups {
		written := g.Outputs
		if g.Table != "" {
			written = append([]string{g.Table}, g.Outputs...)
		}
		for _, name := range written {
			if got := topo.Stream(name).Reading().WrittenBy; !strings.Contains(got, g.Name) {
				t.Errorf("%s is written by group %s, but Reading says %q", name, g.Name, got)
			}
		}
	}
}

// Keys that the code makes match the patterns, and no pattern takes a key with
// an id that is not escaped, or one of another form.
func TestKeyPatterns(t *testing.T) {
	topo, _ := New(DefaultConfig())
	odd := Relation{Kind: Follow, User: "a:b|c~d%e", Target: "赞 x"}
	more := map[string][]string{
		CDC:             {odd.Key()},
		Facts:           {OnPartition(0xffff, odd.Key())},
		BucketChanges:   {CountedKey(0, 1023, odd)},
		ProjectionTable: {CountedKey(0, 1023, odd)},
		LikersTable:     {LikerKey(NewReverseGeneration(2, 8, 16).Place(odd), odd.Key())},
		PartialCounts:   {TargetKey(odd.Kind, odd.Target), ProgressKey(7, 4095)},
		DisplayTable:    {TargetKey(odd.Kind, odd.User)},
	}
	wrong := []string{"", "like:u7", "like:u7:a:b", "love:u7:V1", "0003|like:u7:a~b", "0003|like:u7:%zz", "0003|03d1|like:u7:", "003|like:u7:V1", "like:", "0003|~nonsense"}
	for _, s := range topo.Streams {
		pattern, ok := s.asyncKey()["pattern"].(string)
		if !ok {
			if s.Name != Quarantine {
				t.Errorf("%s has no key pattern", s.Name)
			}
			continue
		}
		re, err := regexp.Compile(pattern)
		if err != nil {
			t.Fatalf("%s: %v", s.Name, err)
		}
		keys := more[s.Name]
		for _, k := range s.Reading().Keys {
			keys = append(keys, k.Example)
		}
		for _, key := range keys {
			if !re.MatchString(key) {
				t.Errorf("%s: key %q does not match %s", s.Name, key, pattern)
			}
		}
		for _, key := range wrong {
			if targets := s.Name == PartialCounts || s.Name == DisplayTable; targets && key == "like:u7" {
				continue // a target's key
			}
			if re.MatchString(key) {
				t.Errorf("%s: %q is no key of it, but matches %s", s.Name, key, pattern)
			}
		}
	}
}
