package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/privacy"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/views"
)

// fakeVisibility has a verdict and a withdrawal by target, and keeps events and
// the audit in the order in which they came.
type fakeVisibility struct {
	verdicts  map[string]privacy.Verdict // Allowed if missing
	withdrawn map[string]privacy.Withdrawal
	err       error
	asked     []topology.Relation
	log       []any
	version   uint64 // stored, of whatever event
}

func (f *fakeVisibility) MayBegin(_ context.Context, r topology.Relation) (privacy.Verdict, error) {
	f.asked = append(f.asked, r)
	if v, ok := f.verdicts[r.Target]; ok {
		return v, f.err
	}
	return privacy.Allowed, f.err
}

func (f *fakeVisibility) Withdrawn(_ context.Context, _ string, _ topology.Kind, targets []string) ([]privacy.Withdrawal, error) {
	if f.err != nil || f.withdrawn == nil {
		return nil, f.err
	}
	out := make([]privacy.Withdrawal, len(targets))
	for i, id := range targets {
		out[i] = f.withdrawn[id]
	}
	return out, nil
}

func (f *fakeVisibility) Audit(_ context.Context, e control.Entry) error {
	f.log = append(f.log, e)
	return f.err
}

func (f *fakeVisibility) Apply(_ context.Context, e privacy.Event) (bool, error) {
	f.log = append(f.log, e)
	v, ok := e.(privacy.Video)
	if applied := !ok || v.Version > f.version; !applied {
		return false, f.err
	}
	f.version = v.Version
	return true, f.err
}

// A deleted target takes no new relation of any sort, an old one can be ended,
// and a retry of what was decided before is answered as before (I7, A3).
func TestADeletedTargetRefuses(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	ta.put(likePath, "before", `{"desiredState":"LIKED"}`, http.StatusOK, nil)
	ta.visible.verdicts = map[string]privacy.Verdict{"V9001": privacy.NoTarget, "u8": privacy.NoTarget, "V2": privacy.NoAccount}
	for path, state := range map[string]string{likePath: "LIKED", likePath + " ": "DISLIKED", "/v1/videos/V9001/favorite-relation": "FAVORITED", "/v1/users/u8/follow-relation": "FOLLOWING"} {
		var p Problem
		ta.put(strings.TrimSpace(path), "new-"+state, `{"desiredState":"`+state+`"}`, http.StatusNotFound, &p)
		if p.Type != kindTargetUnknown.uri() || strings.Contains(strings.ToLower(p.Detail), "delete") || p.CurrentRelation != nil {
			t.Errorf("%s: %+v", path, p)
		}
	}
	var p Problem
	ta.put("/v1/videos/V2/like-relation", "own", `{"desiredState":"LIKED"}`, http.StatusForbidden, &p)
	if p.Type != kindAccountInactive.uri() {
		t.Errorf("%+v", p)
	}
	if n := len(ta.store.commands); n != 1 {
		t.Errorf("%d commands reached the store", n)
	}
	var again CommandAnswer
	ta.put(likePath, "before", `{"desiredState":"LIKED"}`, http.StatusOK, &again)
	if !again.Replayed || again.OperationResult.State != "LIKED" {
		t.Errorf("the retry: %+v", again)
	}
	asked := len(ta.visible.asked)
	ta.put(likePath, "cancel", `{"desiredState":"UNLIKED"}`, http.StatusOK, nil)
	if len(ta.visible.asked) != asked {
		t.Error("a cancel asked who may")
	}
	ta.put(likePath, "again", `{"desiredState":"LIKED"}`, http.StatusNotFound, nil)
}

// Whether nothing is known, or the store cannot tell whether it was decided, the
// answer asks to come again, and nothing is committed.
func TestVisibilityOutage(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{counts: map[string]views.Count{"like:V9001": {Counts: topology.Counts{Raw: 7}, Found: true}}})
	ta.visible.err = privacy.ErrUndecided
	like := request(t, http.MethodPut, likePath, `{"desiredState":"LIKED"}`)
	ta.wantProblem(like, kindPrivacyUnavailable)
	ta.wantProblem(request(t, http.MethodGet, "/v1/targets/like/V9001/count", ""), kindPrivacyUnavailable)
	ta.wantProblem(request(t, http.MethodPost, "/v1/like-relations/batch-query", `{"videoIds":["V9001"]}`), kindPrivacyUnavailable)
	ta.store.err = errors.New("the shard is away")
	ta.wantProblem(request(t, http.MethodPut, likePath, `{"desiredState":"LIKED"}`), kindStoreUnavailable)
	if len(ta.store.commands) != 0 {
		t.Errorf("%d commands reached the store", len(ta.store.commands))
	}
}

// A withdrawn count is 0 with its reason, a hidden one as of what never was, and
// what is counted comes back as it was (J3).
func TestWithdrawnCounts(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{counts: map[string]views.Count{}})
	for _, id := range []string{"gone", "secret", "there"} {
		ta.store.counts["like:"+id] = views.Count{Target: id, Counts: topology.Counts{Raw: 12, RiskHidden: 4, PolicyHidden: 1, Disliked: 2}, Found: true, GeneratedAt: testTime, Seq: 9, Generation: 1, ManifestID: 1, Partials: 1}
	}
	ta.visible.withdrawn = map[string]privacy.Withdrawal{"gone": "DELETED", "secret": privacy.CountHidden, "secret, and nobody likes it": privacy.CountHidden}
	text := func(r *http.Request) string {
		b, _ := io.ReadAll(ta.serve(r).Body)
		return string(b)
	}
	count := func(id string) string { return text(request(t, http.MethodGet, "/v1/targets/like/"+id+"/count", "")) }
	var gone, there CountAnswer
	if err := errors.Join(json.Unmarshal([]byte(count("gone")), &gone), json.Unmarshal([]byte(count("there")), &there)); err != nil {
		t.Fatal(err)
	}
	if gone.Withdrawn != "DELETED" || gone.DisplayCount != 0 || gone.Active != 0 || gone.Disliked != 0 || !gone.Found || gone.Seq != 9 {
		t.Errorf("%+v", gone)
	}
	if there.Withdrawn != "" || there.DisplayCount != 7 {
		t.Errorf("%+v", there)
	}
	var raw CountAnswer
	ta.do(as(t, "root", OperatorRole, http.MethodGet, "/v1/targets/like/gone/count", ""), http.StatusOK, &raw)
	if raw.Withdrawn != "DELETED" || raw.DisplayCount != 0 || raw.Active != 7 || raw.Disliked != 2 || *raw.Raw != 12 || *raw.RiskHidden != 4 || *raw.PolicyHidden != 1 {
		t.Errorf("to an operator: %+v", raw)
	}
	never := count("secret,%20and%20nobody%20likes%20it")
	if got := strings.ReplaceAll(count("secret"), "secret", "secret, and nobody likes it"); got != never || strings.Contains(got, "HIDDEN") {
		t.Errorf("a hidden count\n%s\nof what never was\n%s", got, never)
	}
	batch := text(request(t, http.MethodPost, "/v1/like-relations/batch-query", `{"videoIds":["there","gone","secret","gone"]}`))
	item := func(id, count, at, rest string) string {
		return `{"videoId":"` + id + `","myState":"UNLIKED","relationVersion":0,"displayCount":` + count + `,"countSnapshotAt":` + at + rest + `}`
	}
	at := `"2026-08-19T10:20:30.123456Z"`
	withdrawn := item("gone", "0", at, `,"withdrawn":"DELETED"`)
	if want := `{"items":[` + item("there", "7", at, "") + "," + withdrawn + "," + item("secret", "0", "null", "") + "," + withdrawn + "]}\n"; batch != want {
		t.Errorf("batch\n%s\nwant\n%s", batch, want)
	}
	ta.visible.withdrawn = nil // restored
	var restored CountAnswer
	ta.do(request(t, http.MethodGet, "/v1/targets/like/gone/count", ""), http.StatusOK, &restored)
	if restored.DisplayCount != 7 || restored.Withdrawn != "" {
		t.Errorf("restored: %+v", restored)
	}
}

const videoEvent = `{"type":"video","videoId":"V1","version":3,"authorId":"u7","status":"DELETED","likers":"EVERYONE","favoriters":"AUTHOR"}`

func TestPrivacyEvents(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	const path = "/v1/privacy-events"
	for _, role := range []string{"", AnalystRole} {
		ta.wantProblem(as(t, "eve", role, http.MethodPost, path, videoEvent), kindRoleMissing)
	}
	for _, body := range []string{
		``, `{}`, `[]`, strings.Replace(videoEvent, `"authorId":"u7",`, "", 1), strings.Replace(videoEvent, "DELETED", "GONE", 1),
		strings.Replace(videoEvent, `:3,`, `:0,`, 1), strings.Replace(videoEvent, `"version":3,`, `"version":3,"version":4,`, 1), videoEvent + videoEvent,
		strings.Replace(videoEvent, `"type"`, `"delta":1,"type"`, 1),
	} {
		var p Problem
		ta.do(as(t, "root", OperatorRole, http.MethodPost, path, body), http.StatusBadRequest, &p)
		if len(p.Errors) != 1 || p.Errors[0].Location != "body" {
			t.Errorf("%s: %+v", body, p)
		}
	}
	if len(ta.visible.log) != 0 {
		t.Fatalf("what is refused was audited or stored: %+v", ta.visible.log)
	}
	var first, again PrivacyEventAnswer
	ta.do(as(t, "root", OperatorRole, http.MethodPost, path, videoEvent), http.StatusOK, &first)
	ta.do(as(t, "root", OperatorRole, http.MethodPost, path, videoEvent), http.StatusOK, &again)
	if first != (PrivacyEventAnswer{"video:V1", true}) || again != (PrivacyEventAnswer{"video:V1", false}) {
		t.Errorf("%+v, then %+v", first, again)
	}
	line, ok := ta.visible.log[0].(control.Entry)
	if !ok || line.Who != "root" || line.Subject != "video:V1" || line.Action != "privacy.event" {
		t.Errorf("the audit, before anything is stored: %+v", ta.visible.log[0])
	}
	ta.visible.err = errors.New("the control database is away")
	ta.wantProblem(as(t, "root", OperatorRole, http.MethodPost, path, videoEvent), kindPrivacyUnavailable)
}

func FuzzPrivacyEventBody(f *testing.F) {
	f.Add(videoEvent)
	f.Add(`{"type":"block","blockerId":"u7","blockedId":"u8","version":1,"active":true}`)
	f.Add(`{"type":"account","accountId":"u7","version":3,"status":"ACTIVE","private":false,"showLikes":true,"showFavorites":false,"showFollowing":false,"showFollowers":true}`)
	ta := newTestAPI(f, &fakeStore{})
	f.Fuzz(func(t *testing.T, text string) {
		ta.log.Reset()
		ta.visible.log = nil
		status, _ := neverWorse(t, ta, as(t, "root", OperatorRole, http.MethodPost, "/v1/privacy-events", text))
		e, err := privacy.ParseEvent([]byte(text))
		if (status == http.StatusOK) != (err == nil) {
			t.Fatalf("%d, %v: %q", status, err, text)
		}
		if err != nil {
			return
		}
		if stored := ta.visible.log[1]; stored != e {
			t.Fatalf("stored %+v, %q is %+v", stored, text, e)
		}
		var body PrivacyEventBody
		agrees(t, ta, text, &body)
	})
}
