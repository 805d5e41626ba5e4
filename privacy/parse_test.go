package privacy

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
)

const (
	accountJSON = `{"type":"account","accountId":"u7","version":3,"status":"ACTIVE","private":false,"showLikes":true,"showFavorites":false,"showFollowing":false,"showFollowers":true}`
	videoJSON   = `{"type":"video","videoId":"V1","version":1,"authorId":"u7","status":"PUBLIC","likers":"AUTHOR","favoriters":"NOBODY"}`
	blockJSON   = `{"type":"block","blockerId":"u7","blockedId":"u8","version":2,"active":true}`
)

func TestParseEvent(t *testing.T) {
	for text, want := range map[string]Event{
		accountJSON: Account{ID: "u7", Version: 3, Status: Active, ShowLikes: true, ShowFollowers: true},
		videoJSON:   Video{"V1", 1, "u7", Public, Author, Nobody},
		blockJSON:   Block{"u7", "u8", 2, true},
	} {
		if got, err := ParseEvent([]byte(text)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %+v, %v", text, got, err)
		}
	}
}

// TestParseEventWantsEveryField: each field, left out, null or in another case,
// is named.
func TestParseEventWantsEveryField(t *testing.T) {
	for _, text := range []string{accountJSON, videoJSON, blockJSON} {
		var fields map[string]any
		if err := json.Unmarshal([]byte(text), &fields); err != nil {
			t.Fatal(err)
		}
		for name, value := range fields {
			for change, alter := range map[string]func(map[string]any){
				"left out":   func(m map[string]any) { delete(m, name) },
				"null":       func(m map[string]any) { m[name] = nil },
				"other case": func(m map[string]any) { delete(m, name); m[strings.ToUpper(name)] = value },
				"twice":      func(m map[string]any) { m[strings.ToUpper(name)] = value },
			} {
				changed := map[string]any{}
				for k, v := range fields {
					changed[k] = v
				}
				alter(changed)
				b, _ := json.Marshal(changed)
				if e, err := ParseEvent(b); !errors.Is(err, ErrInvalid) || change != "twice" && !strings.Contains(err.Error(), name) {
					t.Errorf("%s %s: %+v, %v", name, change, e, err)
				}
			}
		}
	}
	for _, text := range []string{"", "null", "[]", "1", `{"type":"like"}`, accountJSON[:40], `{"type":"block","delta":1}`,
		strings.Replace(blockJSON, "2", "-2", 1), strings.Replace(blockJSON, "2", "2.5", 1), strings.Replace(blockJSON, `"u8"`, `"u7"`, 1)} {
		if e, err := ParseEvent([]byte(text)); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %+v, %v", text, e, err)
		}
	}
}

func FuzzParseEvent(f *testing.F) {
	for _, text := range []string{accountJSON, videoJSON, blockJSON, `{"type":"account"}`, "null"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := ParseEvent(b)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		if err := e.check(); err != nil {
			t.Fatalf("%q is %+v: %v", b, e, err)
		}
	})
}
