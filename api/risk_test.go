package api

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidemark/tidemark/risk"
	"github.com/tidemark/tidemark/topology"
)

// judged is an API with rules of risk.
func judged(t *testing.T, c risk.Config, rules string) *testAPI {
	t.Helper()
	ta := newTestAPI(t, &fakeStore{})
	if rules != "" {
		c.RulesFile = filepath.Join(t.TempDir(), "rules.yaml")
		if err := os.WriteFile(c.RulesFile, []byte(rules), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d, err := risk.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ta.api.risk = &Risk{Decider: d}
	return ta
}

// A refused command commits nothing and does not tell why; what was decided
// before is answered as before, and a relation can always be ended (J2, A3).
func TestRiskRefuses(t *testing.T) {
	ta := judged(t, risk.Config{}, `
rules:
  - {name: farm, action: refuse, reason: device-farm, when: {devices: [d1]}}
  - {name: net, action: refuse, reason: bad-network, when: {addresses: [192.0.2.0/24], targets: [V2]}}
`)
	ta.put(likePath, "before", `{"desiredState":"LIKED"}`, http.StatusOK, nil)
	for path, state := range map[string]string{likePath: "LIKED", likePath + " ": "DISLIKED", "/v1/videos/V9001/favorite-relation": "FAVORITED", "/v1/users/u8/follow-relation": "FOLLOWING"} {
		var p Problem
		ta.put(strings.TrimSpace(path), "new-"+state, `{"desiredState":"`+state+`","deviceId":"d1"}`, http.StatusForbidden, &p)
		if p.Type != kindRiskRefused.uri() || strings.Contains(p.Detail+p.Title, "farm") || strings.Contains(p.Detail, "device") {
			t.Errorf("%s: %+v", path, p)
		}
	}
	ta.put("/v1/videos/V2/like-relation", "net", `{"desiredState":"LIKED"}`, http.StatusForbidden, nil) // httptest's client is at 192.0.2.1
	if n := len(ta.store.commands); n != 1 {
		t.Errorf("%d commands reached the store", n)
	}
	var again CommandAnswer
	ta.put(likePath, "before", `{"desiredState":"LIKED","deviceId":"d1"}`, http.StatusOK, &again)
	if !again.Replayed || again.OperationResult.State != "LIKED" {
		t.Errorf("the retry: %+v", again)
	}
	ta.put(likePath, "end", `{"desiredState":"UNLIKED","deviceId":"d1"}`, http.StatusOK, nil)
}

// A hidden command is answered as any other, and its hiding reaches the store.
func TestRiskHides(t *testing.T) {
	const rules = "rules: [{name: farm, action: hide, by: policy, reason: rules.25, when: {devices: [d1]}}]"
	ta := judged(t, risk.Config{}, rules)
	r := sendCommand(t, ta, "op-1", `{"desiredState":"LIKED","deviceId":"d1"}`)
	if body := r.Body.String(); r.Code != http.StatusOK || !strings.Contains(body, `"state":"LIKED"`) || strings.Contains(body, "rules.25") || strings.Contains(body, "idden") {
		t.Errorf("%d %s", r.Code, body)
	}
	sendCommand(t, ta, "op-2", `{"desiredState":"UNLIKED","deviceId":"d1"}`)
	sendCommand(t, ta, "op-3", `{"desiredState":"LIKED","deviceId":"d2"}`)
	if len(ta.store.commands) != 3 {
		t.Fatalf("%d commands reached the store", len(ta.store.commands))
	}
	for id, want := range map[string]topology.Hiding{"op-1": {By: topology.HiddenByPolicy, Reason: "rules.25"}, "op-2": {}, "op-3": {}} {
		if got := ta.store.commands[id].Command.Hiding; got != want {
			t.Errorf("command %s: %+v", id, got)
		}
	}
}

// While the service is away, a refusal is one to come again after.
func TestRiskOutage(t *testing.T) {
	away := &risk.ServiceConfig{URL: "http://127.0.0.1:1", Timeout: 1e9, InFlight: 1}
	ta := judged(t, risk.Config{Service: away, Unavailable: risk.Refuse}, "")
	ta.wantProblem(request(t, http.MethodPut, likePath, `{"desiredState":"LIKED"}`), kindRiskUnavailable)
	ta.put(likePath, "end", `{"desiredState":"UNLIKED"}`, http.StatusOK, nil)
	ta = judged(t, risk.Config{Service: away, Unavailable: risk.Hide}, "")
	ta.put(likePath, "op", `{"desiredState":"LIKED"}`, http.StatusOK, nil)
	if got := ta.store.commands["op"].Command.Hiding; got != (topology.Hiding{By: topology.HiddenByRisk, Reason: risk.ReasonUnavailable}) {
		t.Errorf("%+v", got)
	}
}
