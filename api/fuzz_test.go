package api

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tidemark/tidemark/topology"
)

// neverWorse serves r: any answer is good or the client's fault, in JSON.
func neverWorse(t *testing.T, ta *testAPI, r *http.Request) (status int, body []byte) {
	t.Helper()
	w := httptest.NewRecorder()
	ta.api.ServeHTTP(w, r)
	if w.Code != 200 && (w.Code < 400 || w.Code > 499) {
		t.Fatalf("status %d: %s\n%s", w.Code, w.Body, ta.log)
	}
	if !json.Valid(w.Body.Bytes()) {
		t.Fatalf("answer is not JSON: %q", w.Body)
	}
	return w.Code, w.Body.Bytes()
}

// agrees checks that what the strict reader accepted is valid by the document
// and means the same to encoding/json.
func agrees(t *testing.T, ta *testAPI, text string, into any) {
	t.Helper()
	registry := ta.api.huma.OpenAPI().Components.Schemas
	schema := registry.Schema(reflect.TypeOf(into).Elem(), false, "")
	var value any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatalf("accepted %q, but it is not JSON: %v", text, err)
	}
	res := &huma.ValidateResult{}
	huma.Validate(registry, schema, huma.NewPathBuffer(nil, 0), huma.ModeWriteToServer, value, res)
	if len(res.Errors) > 0 {
		t.Fatalf("accepted %q, but not by the document: %v", text, res.Errors)
	}
	dec := json.NewDecoder(bytes.NewReader([]byte(text)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		t.Fatalf("accepted %q, encoding/json does not: %v", text, err)
	}
}

func FuzzCommandBody(f *testing.F) {
	for _, c := range badBodies {
		f.Add(c.body)
	}
	f.Add(` {"desiredState" : "LIK\u0045D","baseVersion":0,"deviceId":"\ud83d\ude00\n","clientSequence":9223372036854775807}`)
	ta := newTestAPI(f, &fakeStore{before: nil})
	f.Fuzz(func(t *testing.T, text string) {
		ta.store.commands, ta.store.facts = nil, nil
		ta.log.Reset()
		neverWorse(t, ta, request(t, http.MethodPut, likePath, text))
		got, p := decodeCommand(text, topology.Like)
		if p != nil {
			return
		}
		var want CommandBody[LikeState]
		agrees(t, ta, text, &want)
		if got.desired.String() != string(want.DesiredState) || got.device != want.DeviceID ||
			got.baseVersion != nil && *got.baseVersion != want.BaseVersion || got.sequence != nil && *got.sequence != want.ClientSequence {
			t.Fatalf("%q means %+v, encoding/json reads %+v", text, got, want)
		}
	})
}

func FuzzBatchBody(f *testing.F) {
	for _, c := range badBodies {
		f.Add(c.body)
	}
	f.Add(`{"videoIds":["V1","V2","V1","\u8d5e\""],"minRelationVersions":{"V2":1,"\u00561":0}}`)
	ta := newTestAPI(f, batchStore())
	f.Fuzz(func(t *testing.T, text string) {
		ta.log.Reset()
		ta.store.asked = nil
		status, body := neverWorse(t, ta, request(t, http.MethodPost, likeBatch, text))
		got, p := decodeBatch(text, "videoIds")
		if (p == nil) != (status == 200) {
			t.Fatalf("decoded with %v, answered %d", p, status)
		}
		if p != nil {
			return
		}
		var want VideosQuery
		agrees(t, ta, text, &want)
		if len(want.VideoIDs) != len(got.ids) || len(got.ids) > 0 && !reflect.DeepEqual(want.VideoIDs, got.ids) {
			t.Fatalf("%q means %q, encoding/json reads %q", text, got.ids, want.VideoIDs)
		}
		checkPlaces(t, got, want.MinRelationVersions)
		var answer VideosAnswer
		if err := json.Unmarshal(body, &answer); err != nil || len(answer.Items) != len(got.ids) {
			t.Fatalf("%q answered with %s: %v", text, body, err)
		}
		for i, item := range answer.Items {
			if item.VideoID != got.ids[i] {
				t.Fatalf("item %d is %q, want %q", i, item.VideoID, got.ids[i])
			}
		}
	})
}

// checkPlaces: each id once in unique, found again by its place, with its
// least version.
func checkPlaces(t *testing.T, b batchBody, least map[string]uint64) {
	t.Helper()
	seen := map[string]bool{}
	for _, id := range b.unique {
		if seen[id] {
			t.Fatalf("%q is there twice", id)
		}
		seen[id] = true
	}
	for i, id := range b.ids {
		if b.unique[b.place[i]] != id {
			t.Fatalf("id %d, %q, has the place of %q", i, id, b.unique[b.place[i]])
		}
		if b.least != nil && b.least[b.place[i]] != least[id] {
			t.Fatalf("%q has least version %d, want %d", id, b.least[b.place[i]], least[id])
		}
	}
}

func percent(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		b.WriteString("%" + strings.ToUpper(strconv.FormatUint(uint64(c)|0x100, 16)[1:]))
	}
	return b.String()
}

// Any id that is valid arrives as it is; every other is refused by name.
func FuzzPathID(f *testing.F) {
	for _, id := range []string{"V9001", "", ".", "..", "a/b", "%41", "赞", "\xff", "\x00", "a b", strings.Repeat("a", 257)} {
		f.Add(id)
	}
	ta := newTestAPI(f, &fakeStore{})
	f.Fuzz(func(t *testing.T, id string) {
		ta.store.commands, ta.store.facts = nil, nil
		status, body := neverWorse(t, ta, request(t, http.MethodPut, "/v1/videos/"+percent(id)+"/like-relation", `{"desiredState":"LIKED"}`))
		if good := topology.CheckID(id) == nil; good != (status == 200) {
			t.Fatalf("id %q answered %d: %s", id, status, body)
		}
		if status != 200 {
			if !strings.Contains(string(body), `"path.id"`) {
				t.Fatalf("id %q: the answer does not name it: %s", id, body)
			}
			return
		}
		if _, ok := ta.store.facts[topology.Relation{Kind: topology.Like, User: "u7", Target: id}]; !ok {
			t.Fatalf("id %q arrived as %v", id, ta.store.facts)
		}
	})
}

// No request target that net/http reads gets a redirect or a 5xx.
func FuzzRequestTarget(f *testing.F) {
	for _, target := range []string{likePath, "/", "//", "/v1//", "/v1/videos/..//like-relation?x", "*", "http://h//v1/../a", "/v1/videos/%2e%2e/%2F/", "/v1/operations/;a"} {
		f.Add("PUT", target)
		f.Add("GET", target)
	}
	token := mint(f, "u7")
	ta := newTestAPI(f, &fakeStore{})
	f.Fuzz(func(t *testing.T, method, target string) {
		head := method + " " + target + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token + "\r\n\r\n"
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(head)))
		if err != nil {
			return
		}
		neverWorse(t, ta, r)
	})
}

func FuzzIdempotencyKey(f *testing.F) {
	for _, key := range []string{"op-101", "", " ", `"quoted"`, "赞", "\x00", "\xff", strings.Repeat("k", 129)} {
		f.Add(key)
	}
	ta := newTestAPI(f, &fakeStore{})
	f.Fuzz(func(t *testing.T, key string) {
		ta.store.commands, ta.store.facts = nil, nil
		r := request(t, http.MethodPut, likePath, `{"desiredState":"LIKED"}`)
		r.Header["Idempotency-Key"] = []string{key}
		status, body := neverWorse(t, ta, r)
		if (badKey(key) == "") != (status == 200) {
			t.Fatalf("key %q answered %d: %s", key, status, body)
		}
		if status == 200 {
			var a CommandAnswer
			if err := json.Unmarshal(body, &a); err != nil || a.OperationID != key {
				t.Fatalf("key %q came back as %q", key, a.OperationID)
			}
			if _, ok := ta.store.commands[key]; !ok {
				t.Fatalf("key %q was not stored", key)
			}
			status, body = neverWorse(t, ta, request(t, http.MethodGet, "/v1/operations/"+percent(key), ""))
			if status != 200 {
				t.Fatalf("operation %q is not found: %s", key, body)
			}
		}
	})
}

// No text is a token of another user than the one that was signed.
func FuzzToken(f *testing.F) {
	good := mint(f, "u7")
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add(b64(`{"alg":"none"}`) + "." + b64(`{"sub":"u8","exp":9999999999}`) + ".")
	f.Add("a.b.c")
	f.Add(`{"payload":"","signatures":[]}`)
	ta := newTestAPI(f, &fakeStore{})
	f.Fuzz(func(t *testing.T, token string) {
		ta.store.commands, ta.store.facts = nil, nil
		r := request(t, http.MethodPut, likePath, `{"desiredState":"LIKED"}`)
		r.Header["Authorization"] = []string{"Bearer " + token}
		if status, _ := neverWorse(t, ta, r); status == 200 {
			for rel := range ta.store.facts {
				if rel.User != "u7" {
					t.Fatalf("token %q made %+v", token, rel)
				}
			}
		} else if status != 401 {
			t.Fatalf("token %q answered %d", token, status)
		}
	})
}

// FuzzAppendString: what is written is what encoding/json reads.
func FuzzAppendString(f *testing.F) {
	f.Add("a\"b\\c\x00\x1f赞\u2028")
	f.Fuzz(func(t *testing.T, s string) {
		s = strings.ToValidUTF8(s, "?")
		var back string
		if err := json.Unmarshal(appendString(nil, s), &back); err != nil || back != s {
			t.Fatalf("%q came back as %q: %v", s, back, err)
		}
		r := jsonReader{s: string(appendString(nil, s))}
		if got, bad := r.str(); bad != "" || got != s {
			t.Fatalf("%q is read as %q: %s", s, got, bad)
		}
	})
}
