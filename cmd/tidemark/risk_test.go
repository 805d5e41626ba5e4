package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidemark/tidemark/api"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/risk/cases"
)

// judging runs an API for commands with rules beside the system, and gives its
// address.
func (s *system) judging(t *testing.T, rules string) (url string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(path, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	file := s.changedConfig(t, func(c *config.Config) {
		c.Risk.RulesFile, c.Instance, c.API.Listen, c.Ops.Listen = path, "judging", "127.0.0.1:0", "127.0.0.1:0"
	})
	r := run(t, "run", "commands", "--config", file)
	r.await(t, readyLine)
	return strings.Fields(r.await(t, "API"))[1]
}

// TestRiskFromRuleToUndo hides likes by a rule and by an operator: their users
// see LIKED, the public count lacks them, an operator sees each number, and every
// count is right throughout; what is undone counts again (J2, C5).
func TestRiskFromRuleToUndo(t *testing.T) {
	s := theSystem(t)
	const video = "V-risk"
	judging := s.judging(t, `
rules:
  - {name: farm, action: hide, by: risk, reason: device-farm, when: {users: [risk-bot], targets: [V-risk]}}
  - {name: ban, action: refuse, reason: script, when: {users: [risk-script]}}
`)
	at := func(where, user string) *client { return newClient(t, where, user, s.at()...) }
	bot, fan := at(judging, "risk-bot"), at(judging, "risk-fan")
	bot.like(video, "risk-1")
	fan.like(video, "risk-2")
	if err := at(judging, "risk-script").try(http.MethodPut, "/v1/videos/"+video+"/like-relation", "risk-3", map[string]any{"desiredState": "LIKED"}, nil); err == nil ||
		!strings.Contains(err.Error(), "risk-refused") || strings.Contains(err.Error(), "script\"") {
		t.Errorf("the refused: %v", err)
	}

	// Everybody asks the API that the rules do not stand before.
	bot, fan = at(s.endpoints(t).API, "risk-bot"), at(s.endpoints(t).API, "risk-fan")
	key, err := api.LoadKey(s.config(t).Auth.HS256KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	token, err := api.MintToken(key, "root", api.OperatorRole, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	root := &client{t, s.endpoints(t).API, "root", token}
	shows := func(raw, risk, policy int64) {
		t.Helper()
		eventually(t, func() error {
			var public, all api.CountAnswer
			path := "/v1/targets/like/" + video + "/count"
			fan.do(http.MethodGet, path, "", nil, &public)
			root.do(http.MethodGet, path, "", nil, &all)
			if want := raw - risk - policy; public.DisplayCount != want || public.Active != want || public.Raw != nil || all.DisplayCount != want ||
				all.Raw == nil || *all.Raw != raw || *all.RiskHidden != risk || *all.PolicyHidden != policy {
				return fmt.Errorf("the public sees %+v, an operator %+v", public, all)
			}
			return nil
		})
	}
	shows(2, 1, 0)
	var own api.VideosAnswer
	bot.do(http.MethodPost, "/v1/like-relations/batch-query", "", map[string]any{"videoIds": []string{video}}, &own)
	if own.Items[0].MyState != "LIKED" || own.Items[0].DisplayCount != 1 {
		t.Errorf("its user sees %+v", own.Items[0])
	}
	wantVerdict(t, exitOK, s.at()...)

	hide := func(args ...string) (done caseJSON) {
		t.Helper()
		mustJSON(t, must(t, exitOK, s.at(append(append([]string{"risk"}, args...), "--purpose", "ticket 4711", "--as", "ann", "--output", "json")...)...).out, &done)
		return done
	}
	args := []string{"hide", "--user", "risk-fan", "--kind", "like", "--by", "policy", "--reason", "rules.25", "--case", "risk-case"}
	if done := hide(args...); done.Executed || done.Applied != 1 {
		t.Errorf("the dry run: %+v", done)
	}
	shows(2, 1, 0)
	for range 2 { // the second time as after a lost answer
		if done := hide(append(args, "--execute")...); done.Case != "risk-case" || done.Done != (cases.Done{Relations: 1, Applied: 1}) {
			t.Errorf("hidden: %+v", done)
		}
	}
	shows(2, 1, 1)
	s.wantAudit(t, "risk:risk-case", control.Entry{Who: "ann", Action: "risk.ended", Reason: "ticket 4711"})
	if done := hide("show", "--undo", "risk-case"); done.Executed || done.Applied != 1 {
		t.Errorf("the dry run of the undo: %+v", done)
	}
	if done := hide("show", "--undo", "risk-case", "--execute"); done.Case != "undo-risk-case" || done.Done != (cases.Done{Relations: 1, Applied: 1}) {
		t.Errorf("undone: %+v", done)
	}
	shows(2, 1, 0)
	if done := hide("show", "--user", "risk-bot", "--kind", "like", "--target", video, "--execute"); done.Applied != 1 {
		t.Errorf("shown: %+v", done)
	}
	shows(2, 0, 0)
	wantVerdict(t, exitOK, s.at()...)

	var list []riskCaseJSON
	mustJSON(t, must(t, exitOK, s.at("risk", "cases", "--output", "json")...).out, &list)
	if len(list) != 3 || list[1].Undoes != "risk-case" || list[2].Hidden != "policy" || list[2].Applied != 1 || list[2].EndedAt == nil {
		t.Errorf("cases %+v", list)
	}
	if r := must(t, exitError, s.at(append([]string{"risk"}, append(args, "--execute", "--purpose", "again")...)...)...); !strings.Contains(r.errOut, "has been undone") {
		t.Error(r)
	}
}

func TestRiskCheckAndTry(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`
rules:
  - {name: trial, dryRun: true, action: refuse, reason: x, when: {kinds: [like]}}
  - {name: farm, action: hide, by: risk, reason: device-farm, when: {devices: [d1], addresses: [192.0.2.0/24]}}
`)
	if r := must(t, exitOK, "risk", "check", "--file", path); !strings.HasPrefix(r.out, "2 rules, version ") {
		t.Error(r)
	}
	var tried triedJSON
	try := []string{"risk", "try", "--file", path, "--user", "u7", "--target", "V1", "--output", "json"}
	mustJSON(t, must(t, exitOK, append(try, "--device", "d1", "--address", "192.0.2.7")...).out, &tried)
	if tried.Verdict != "hide" || tried.By != "risk" || tried.Reason != "device-farm" || tried.Rule != "farm" || len(tried.DryRuns) != 1 {
		t.Errorf("%+v", tried)
	}
	if r := must(t, exitOK, try[:len(try)-2]...); !strings.Contains(r.out, "verdict  allow\nsource   none\ndry run  trial\n") {
		t.Error(r)
	}
	write("rules: [{name: a, action: hide, reason: x, when: {kinds: [like]}}]")
	if r := must(t, exitDifferent, "risk", "check", "--file", path, "--output", "json"); !strings.Contains(r.out, `"valid": false`) || !strings.Contains(r.out, "by goes with hide") {
		t.Error(r)
	}
	for _, args := range [][]string{
		{"check"}, {"try", "--file", path}, append(try[1:len(try):len(try)], "--state", "UNLIKED"), append(try[1:], "--address", "home"), append(try[1:], "--at", "noon"),
		{"hide"}, {"hide", "--user", "u7", "--kind", "like", "--reason", "x"}, {"hide", "--user", "u7", "--reason", "x", "--purpose", "p"},
		{"hide", "--user", "u7", "--kind", "like", "--purpose", "p"}, {"hide", "--user", "u7", "--kind", "like", "--reason", "x", "--purpose", "p", "--by", "me"},
		{"show", "--undo", "c", "--user", "u7", "--kind", "like", "--purpose", "p"}, {"show", "--undo", "c", "--case", "d", "--purpose", "p"}, {"show", "--file", "f", "--user", "u"},
	} {
		if r := must(t, exitUsage, append([]string{"risk"}, args...)...); r.out != "" {
			t.Error(r)
		}
	}
}
