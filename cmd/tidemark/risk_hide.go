package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/risk/cases"
	"github.com/tidemark/tidemark/topology"
)

// riskCase is a command that hides or shows relations: the one of its flags.
type riskCase struct {
	at      *where
	out     *output
	by      *as
	file    string
	user    string
	target  string
	kind    string
	hidden  string // by whom
	reason  string
	purpose string
	id      string
	undo    string
	execute bool
}

const aboutCases = "Without --execute it says what it would do. Every case is audited, with its purpose, and can be undone\n" +
	"with tidemark risk show --undo CASE. One that was interrupted goes on when the same command is given\n" +
	"again with its --case."

func (c *riskCase) flags(cmd *cobra.Command) {
	c.at, c.out, c.by = whereFlags(cmd), outputFlag(cmd, "text", "json"), asFlag(cmd)
	f := cmd.Flags()
	f.StringVar(&c.file, "file", "", "`FILE` of relations, a JSON object with userId, kind and targetId a line; - reads standard input")
	f.StringVar(&c.user, "user", "", "`ID` of a user: all that the user likes, favorites or follows, by --kind")
	f.StringVar(&c.kind, "kind", "", "`KIND` of relation: like, favorite, follow")
	f.StringVar(&c.target, "target", "", "with --user: only this video's or followed user's `ID`")
	f.StringVar(&c.purpose, "purpose", "", "`TEXT`: what for, and where the evidence is (required)")
	f.BoolVar(&c.execute, "execute", false, "do it")
}

func newRiskHide() *cobra.Command {
	c := &riskCase{}
	cmd := &cobra.Command{
		Use:   "hide",
		Short: "Leave relations out of the count that users see, and keep them as facts",
		Long: "Leave out of the count that users see: the relations of a file, one relation, or all that a user has of\n" +
			"a kind. They stay facts, their users see them as before, and lists have them.\n\n" + aboutCases,
		Example: "  tidemark risk hide --user u7 --kind like --reason device-farm.2026-07 --purpose 'ticket 4711' --execute\n" +
			"  tidemark risk hide --file farm.jsonl --reason device-farm.2026-07 --purpose 'ticket 4711'",
		Args: noArgs,
	}
	c.flags(cmd)
	cmd.Flags().StringVar(&c.hidden, "by", topology.HiddenByRisk.String(), "by `WHOM`: risk, policy")
	cmd.Flags().StringVar(&c.reason, "reason", "", "`CODE` that facts, events and metrics have: a-z, 0-9, '.', '_', '-' (required)")
	cmd.Flags().StringVar(&c.id, "case", "", "`ID` of the case (default: a new one)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return c.run(cmd) }
	return cmd
}

func newRiskShow() *cobra.Command {
	c := &riskCase{}
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Count relations again that were hidden, or undo a case",
		Long: "Count again: the relations of a file, one relation, all that a user has of a kind, or those of a case.\n" +
			"An undo gives relations back what they had before the case, and leaves alone those on which something\n" +
			"happened since.\n\n" + aboutCases,
		Example: "  tidemark risk show --undo case-0198 --purpose 'ticket 4712: wrong list' --execute",
		Args:    noArgs,
	}
	c.flags(cmd)
	cmd.Flags().StringVar(&c.id, "case", "", "`ID` of the case (default: a new one)")
	cmd.Flags().StringVar(&c.undo, "undo", "", "`CASE` to undo")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return c.run(cmd) }
	return cmd
}

// hiding is what the flags ask for.
func (c *riskCase) hiding(hides bool) (h topology.Hiding, err error) {
	if !hides {
		return h, nil
	}
	if h.By, err = topology.ParseHidden(c.hidden); err != nil || h.By == topology.Shown {
		return h, usagef("--by %q is not one of risk, policy", c.hidden)
	}
	h.Reason = c.reason
	if err := h.Check(); err != nil {
		return h, usagef("--reason: %w", err)
	}
	return h, nil
}

func (c *riskCase) check() error {
	given := 0
	for _, what := range []string{c.file, c.user, c.undo} {
		if what != "" {
			given++
		}
	}
	switch {
	case given != 1 && c.undo == "":
		return usagef("give either --file, or --user and --kind")
	case given != 1 || c.undo != "" && c.id != "":
		return usagef("--undo goes alone: the case has its relations")
	case strings.TrimSpace(c.purpose) == "":
		return usagef("--purpose is not given: say what for, and where the evidence is")
	case c.user == "" && (c.kind != "" || c.target != ""):
		return usagef("--kind and --target go with --user")
	case c.user != "" && c.kind == "":
		return usagef("--kind is not given: of one kind at a time")
	case len(c.id) > cases.MaxIDBytes || c.id != "" && topology.CheckID(c.id) != nil:
		return usagef("--case is not 1 to %d bytes of text", cases.MaxIDBytes)
	}
	return nil
}

// caseJSON is what --output json prints of a case.
type caseJSON struct {
	Case     string `json:"case"`
	Executed bool   `json:"executed"`
	cases.Done
}

func (c *riskCase) run(cmd *cobra.Command) error {
	if err := errors.Join(c.out.check(), c.check()); err != nil {
		return err
	}
	h, err := c.hiding(cmd.Flags().Lookup("reason") != nil)
	if err != nil {
		return err
	}
	who, err := c.by.name()
	if err != nil {
		return err
	}
	if c.id == "" {
		c.id = "case-" + uuid.Must(uuid.NewV7()).String()
	}
	cfg, err := c.at.load(config.PartPostgres, config.PartControl)
	if err != nil {
		return err
	}
	desk, closeAll, err := openRiskDesk(cmd.Context(), cfg)
	if err != nil {
		return err
	}
	defer closeAll()
	m := newScreen(cmd.ErrOrStderr()).meter("relations", 0)
	defer m.end()
	desk.Progress = func(d cases.Done) { m.set(d.Relations, fmt.Sprintf("%d relations", d.Relations)) }
	done, err := c.do(cmd, desk, control.RiskCase{ID: c.id, Who: who, Purpose: c.purpose, Hiding: h})
	if err != nil {
		return err
	}
	answer := caseJSON{c.id, c.execute, done}
	if c.undo != "" {
		answer.Case = cases.UndoID(c.undo)
	}
	return c.out.print(cmd.OutOrStdout(), answer, answer.text)
}

func (c *riskCase) do(cmd *cobra.Command, desk *cases.Desk, what control.RiskCase) (cases.Done, error) {
	ctx := cmd.Context()
	switch {
	case c.undo != "" && c.execute:
		return desk.Undo(ctx, c.undo, what)
	case c.undo != "":
		return desk.PreviewUndo(ctx, c.undo)
	}
	from, err := c.source(cmd, desk)
	if err != nil {
		return cases.Done{}, err
	}
	if c.execute {
		return desk.Run(ctx, what, from)
	}
	return desk.Preview(ctx, what.Hiding, from)
}

func (c *riskCase) source(cmd *cobra.Command, desk *cases.Desk) (cases.Source, error) {
	if c.file != "" {
		all, err := readRelations(cmd.InOrStdin(), c.file)
		return cases.These(all), err
	}
	kind, err := topology.ParseKind(c.kind)
	if err != nil {
		return nil, usagef("--kind: %w", err)
	}
	if c.target == "" {
		return desk.AllOf(c.user, kind), nil
	}
	r := topology.Relation{Kind: kind, User: c.user, Target: c.target}
	if err := r.Check(); err != nil {
		return nil, usageError{err}
	}
	return cases.These([]topology.Relation{r}), nil
}

// maxRelations is how many relations a file may have, which are in memory.
const maxRelations = 1_000_000

func readRelations(stdin io.Reader, file string) (all []topology.Relation, err error) {
	in := stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, fmt.Errorf("reading relations: %w", err)
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	seen := map[topology.Relation]bool{}
	lines := bufio.NewScanner(in)
	for at := 1; lines.Scan(); at++ {
		if strings.TrimSpace(lines.Text()) == "" {
			continue
		}
		r, err := readRelation(lines.Text())
		if err != nil {
			return nil, fmt.Errorf("reading relations: line %d: %w", at, err)
		}
		if !seen[r] {
			seen[r], all = true, append(all, r)
		}
		if len(all) > maxRelations {
			return nil, fmt.Errorf("reading relations: there are more than %d: give them in several files", maxRelations)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading relations: %w", err)
	}
	return all, nil
}

func readRelation(line string) (r topology.Relation, err error) {
	var text struct{ UserID, Kind, TargetID string }
	d := json.NewDecoder(strings.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&text); err != nil || d.More() {
		return r, errors.New(`is not an object such as {"userId":"u7","kind":"like","targetId":"V9001"}`)
	}
	r.User, r.Target = text.UserID, text.TargetID
	if r.Kind, err = topology.ParseKind(text.Kind); err != nil {
		return r, err
	}
	return r, r.Check()
}

func (a caseJSON) text(w io.Writer) error {
	would := ""
	if !a.Executed {
		would = "would be "
	}
	fmt.Fprintf(w, "%d relations: %d %schanged, %d are so already, %d have nothing to hide, %d were changed since\n",
		a.Relations, a.Applied, would, a.Unchanged, a.Rejected, a.Skipped)
	if !a.Executed {
		_, err := fmt.Fprintln(w, "nothing was changed, add --execute to do it")
		return err
	}
	_, err := fmt.Fprintf(w, "case %s\n", a.Case)
	return err
}

func openRiskDesk(ctx context.Context, cfg config.Config) (*cases.Desk, func(), error) {
	db, err := control.Open(ctx, cfg.Control)
	if err != nil {
		return nil, nil, err
	}
	shards, err := db.ShardMap(ctx)
	if err != nil {
		db.Close()
		return nil, nil, err
	}
	store, err := relations.Open(ctx, relations.Config{URLs: cfg.Postgres, Map: shards, LoadMap: db.ShardMap})
	if err != nil {
		db.Close()
		return nil, nil, err
	}
	return &cases.Desk{Store: store, DB: db}, func() { store.Close(); db.Close() }, nil
}

// riskCaseJSON is a case as --output json lists it.
type riskCaseJSON struct {
	ID        string     `json:"id"`
	Who       string     `json:"who"`
	Purpose   string     `json:"purpose"`
	Hidden    string     `json:"hidden,omitempty"`
	Reason    string     `json:"reason,omitempty"`
	Undoes    string     `json:"undoes,omitempty"`
	BegunAt   time.Time  `json:"begunAt"`
	EndedAt   *time.Time `json:"endedAt,omitempty"`
	Relations int64      `json:"relations"`
	Applied   int64      `json:"applied"`
}

func newRiskCases() *cobra.Command {
	cmd := &cobra.Command{Use: "cases", Short: "List what operators hid and showed, newest first", Args: noArgs}
	at, out := whereFlags(cmd), outputFlag(cmd, "table", "json")
	limit := cmd.Flags().Int("limit", 100, "at most so many")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := out.check(); err != nil {
			return err
		}
		if *limit < 1 {
			return usagef("--limit %d is below 1", *limit)
		}
		cfg, err := at.load(config.PartControl)
		if err != nil {
			return err
		}
		db, err := control.Open(cmd.Context(), cfg.Control)
		if err != nil {
			return err
		}
		defer db.Close()
		all, err := db.RiskCases(cmd.Context(), *limit)
		if err != nil {
			return err
		}
		list := make([]riskCaseJSON, len(all))
		for i, c := range all {
			list[i] = riskCaseJSON{c.ID, c.Who, c.Purpose, c.Hiding.By.String(), c.Hiding.Reason, c.Undoes, c.BegunAt.UTC(), c.EndedAt, c.Relations, c.Applied}
		}
		return out.print(cmd.OutOrStdout(), list, func(w io.Writer) error { return casesTable(w, list) })
	}
	return cmd
}

func casesTable(w io.Writer, list []riskCaseJSON) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "CASE\tBEGUN\tENDED\tWHO\tWHAT\tRELATIONS\tCHANGED\tPURPOSE")
	for _, c := range list {
		what, ended := "show", "no"
		switch {
		case c.Undoes != "":
			what = "undo " + c.Undoes
		case c.Hidden != "":
			what = "hide by " + c.Hidden + ": " + c.Reason
		}
		if c.EndedAt != nil {
			ended = c.EndedAt.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\n", c.ID, c.BegunAt.Format(time.RFC3339), ended, c.Who, what, c.Relations, c.Applied, c.Purpose)
	}
	return tw.Flush()
}
