package topology

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// ids that CheckID accepts, with the characters that keys reserve.
func drawID() *rapid.Generator[string] {
	text := rapid.StringOfN(rapid.OneOf(
		rapid.RuneFrom([]rune(`%:|~/?#0aF-_. "`)),
		rapid.Rune(),
	), 1, 40, MaxIDBytes)
	return text.Filter(func(s string) bool { return CheckID(s) == nil })
}

func drawRelation(t *rapid.T) Relation {
	return Relation{
		Kind:   rapid.SampledFrom(Kinds()).Draw(t, "kind"),
		User:   drawID().Draw(t, "user"),
		Target: drawID().Draw(t, "target"),
	}
}

func TestKeysReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRelation(t)
		if got, err := ParseRelationKey(r.Key()); err != nil || got != r {
			t.Fatalf("relation %+v, key %q, read back %+v, %v", r, r.Key(), got, err)
		}
		k, target, err := ParseTargetKey(TargetKey(r.Kind, r.Target))
		if err != nil || k != r.Kind || target != r.Target {
			t.Fatalf("target key %q read back %v %q, %v", TargetKey(r.Kind, r.Target), k, target, err)
		}
		p := rapid.IntRange(0, MaxPartitions-1).Draw(t, "partition")
		v := rapid.IntRange(0, MaxPartitions-1).Draw(t, "bucket")
		if a, b := CountedKey(p, v, r), CountedKeyOf(p, v, r.Key()); a != b {
			t.Fatalf("counted keys %q and %q", a, b)
		}
		gp, gv, gr, err := ParseCountedKey(CountedKey(p, v, r))
		if err != nil || gp != p || gv != v || gr != r {
			t.Fatalf("counted key %q read back %d %d %+v, %v", CountedKey(p, v, r), gp, gv, gr, err)
		}
	})
}

// Keys of different relations differ, and no id can name a partition, forge
// another part or pass for a key about a partition.
func TestKeysAreUnambiguous(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawRelation(t), drawRelation(t)
		if (a == b) != (a.Key() == b.Key()) {
			t.Fatalf("%+v and %+v have keys %q and %q", a, b, a.Key(), b.Key())
		}
		for _, key := range []string{a.Key(), TargetKey(a.Kind, a.Target)} {
			if _, _, ok := CutPartition(key); ok || strings.ContainsAny(key, "|~") {
				t.Fatalf("key %q has a reserved character unescaped", key)
			}
		}
		counted := CountedKey(1, 2, a)
		if _, _, ok := ParseWatermarkKey(counted); ok {
			t.Fatalf("counted key %q passes for a watermark", counted)
		}
		if _, _, ok := ParseProgressKey(counted); ok {
			t.Fatalf("counted key %q passes for progress", counted)
		}
	})
}

func TestReservedCharactersAreEscaped(t *testing.T) {
	for id, want := range map[string]string{
		"%":       "like:%25:t",
		":":       "like:%3A:t",
		"|":       "like:%7C:t",
		"~":       "like:%7E:t",
		"\x00":    "like:%00:t",
		"\n":      "like:%0A:t",
		"\x1f":    "like:%1F:t",
		"\x7f":    "like:%7F:t",
		"%3A":     "like:%253A:t",
		"a/b c?":  "like:a/b c?:t",
		"短视频":     "like:短视频:t",
		"0001|~w": "like:0001%7C%7Ew:t",
	} {
		if got := (Relation{Kind: Like, User: id, Target: "t"}).Key(); got != want {
			t.Errorf("user %q gives key %q, want %q", id, got, want)
		}
	}
}

func TestParseRelationKeyRefuses(t *testing.T) {
	for name, key := range map[string]string{
		"empty":               "",
		"two parts":           "like:u7",
		"four parts":          "like:u7:V1:x",
		"unknown kind":        "share:u7:V1",
		"upper case kind":     "Like:u7:V1",
		"empty user":          "like::V1",
		"empty target":        "like:u7:",
		"lower case escape":   "like:u%3a7:V1",
		"needless escape":     "like:u%41:V1",
		"escape cut short":    "like:u%3:V1",
		"escape at the end":   "like:u7:V1%",
		"not hex":             "like:u%G0:V1",
		"bar unescaped":       "like:u|7:V1",
		"tilde unescaped":     "like:~u7:V1",
		"control unescaped":   "like:u\n7:V1",
		"control in the id":   "like:u%0A7:V1",
		"delete in the id":    "like:u7:V%7F",
		"not UTF-8":           "like:u\xff:V1",
		"escape and unescape": "like:%25|:V1",
		"names a partition":   "0001|like:u7:V1",
		"id too long":         "like:" + strings.Repeat("u", MaxIDBytes+1) + ":V1",
	} {
		t.Run(name, func(t *testing.T) {
			if r, err := ParseRelationKey(key); err == nil {
				t.Errorf("key %q is read as %+v", key, r)
			}
		})
	}
}

func TestAboutKeys(t *testing.T) {
	if key := WatermarkKey(63, 2); key != "003f|~watermark:0002" {
		t.Errorf("watermark key %q", key)
	}
	if key := ProgressKey(7, 300); key != "0007|~progress:012c" {
		t.Errorf("progress key %q", key)
	}
	if key := CheckpointKey(10); key != "000a|~checkpoint" {
		t.Errorf("checkpoint key %q", key)
	}
	if p, s, ok := ParseWatermarkKey(WatermarkKey(63, 1023)); !ok || p != 63 || s != 1023 {
		t.Errorf("watermark key reads back %d %d %v", p, s, ok)
	}
	if d, c, ok := ParseProgressKey(ProgressKey(7, 300)); !ok || d != 7 || c != 300 {
		t.Errorf("progress key reads back %d %d %v", d, c, ok)
	}
	for _, key := range []string{"", "~watermark:0002", "0001|~watermark:2", "0001|~watermark:00002", "0001|~watermark:000G", "0001|~progress:0002", "0001|~checkpoint", "0001~watermark:0002"} {
		if _, _, ok := ParseWatermarkKey(key); ok {
			t.Errorf("%q passes for a watermark key", key)
		}
	}
}

func TestCutPartition(t *testing.T) {
	for _, c := range []struct {
		key  string
		p    int
		rest string
		ok   bool
	}{
		{"003f|like:u7:V1", 63, "like:u7:V1", true},
		{"ffff|", 65535, "", true},
		{"0000|x", 0, "x", true},
		{"003F|x", 0, "003F|x", false},
		{"03f|x", 0, "03f|x", false},
		{"003f", 0, "003f", false},
		{"003fx", 0, "003fx", false},
		{"", 0, "", false},
	} {
		p, rest, ok := CutPartition(c.key)
		if p != c.p || rest != c.rest || ok != c.ok {
			t.Errorf("CutPartition(%q) = %d, %q, %v; want %d, %q, %v", c.key, p, rest, ok, c.p, c.rest, c.ok)
		}
		if ok && OnPartition(p, rest) != c.key {
			t.Errorf("OnPartition(%d, %q) = %q, want %q", p, rest, OnPartition(p, rest), c.key)
		}
	}
}

func TestCheckID(t *testing.T) {
	for id, want := range map[string]error{
		"":                                  ErrIDEmpty,
		strings.Repeat("a", MaxIDBytes):     nil,
		strings.Repeat("a", MaxIDBytes+1):   ErrIDLong,
		strings.Repeat("é", MaxIDBytes/2+1): ErrIDLong,
		"a\xff":                             ErrIDNotUTF8,
		"a\tb":                              ErrIDControl,
		"a\x7f":                             ErrIDControl,
		"a b%:|~":                           nil,
		"短视频":                               nil,
	} {
		if err := CheckID(id); !errors.Is(err, want) {
			t.Errorf("CheckID(%.20q) = %v, want %v", id, err, want)
		}
	}
}

// Only one text is the key of a relation: what parses is what Key writes.
func FuzzParseRelationKey(f *testing.F) {
	for _, s := range []string{"like:u7:V9001", "follow:%25%3A:%7C%7E", "like:u%3a:V", "favorite:用户:视频", "like:%0A:x", "0001|like:a:b", "like:a:b:c", "like:%", "like:\xff:a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, key string) {
		r, err := ParseRelationKey(key)
		if err != nil {
			return
		}
		if r.Key() != key {
			t.Errorf("%q is read as %+v, whose key is %q", key, r, r.Key())
		}
		if err := r.Check(); err != nil {
			t.Errorf("%q is read as %+v: %v", key, r, err)
		}
	})
}

func FuzzParseCountedKey(f *testing.F) {
	f.Add("003f|01a2|like:u7:V9001")
	f.Add("003f|~watermark:0002")
	f.Add("003f|01a2|")
	f.Fuzz(func(t *testing.T, key string) {
		p, v, r, err := ParseCountedKey(key)
		if err == nil && CountedKey(p, v, r) != key {
			t.Errorf("%q is read as %d, %d, %+v, whose key is %q", key, p, v, r, CountedKey(p, v, r))
		}
		if p, s, ok := ParseWatermarkKey(key); ok && WatermarkKey(p, s) != key {
			t.Errorf("%q is read as the watermark key %q", key, WatermarkKey(p, s))
		}
		if d, c, ok := ParseProgressKey(key); ok && ProgressKey(d, c) != key {
			t.Errorf("%q is read as the progress key %q", key, ProgressKey(d, c))
		}
	})
}

func FuzzParseTargetKey(f *testing.F) {
	f.Add("like:V9001")
	f.Add("follow:%7C:x")
	f.Fuzz(func(t *testing.T, key string) {
		if k, target, err := ParseTargetKey(key); err == nil && TargetKey(k, target) != key {
			t.Errorf("%q is read as %v %q, whose key is %q", key, k, target, TargetKey(k, target))
		}
	})
}
