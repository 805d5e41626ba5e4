package load

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/tidemark/tidemark/topology"
)

// Replay names a recorded log: a CSV file whose first line names the columns
// time, user, kind, target and state in any order (others are ignored), or a
// JSONL file of objects with these fields. Fields do not contain line breaks.
//
//	time    RFC 3339; or a number since the Unix epoch in seconds (fractions
//	        allowed), milliseconds, microseconds or nanoseconds, told apart by
//	        its size
//	kind    like, favorite, follow
//	state   the state that the user wanted, such as LIKED
//
// Lines are sent in the file's order, each not before the one above it.
type Replay struct {
	Path string // ends in .csv, .jsonl or .ndjson
	// Speed is times real time; 0: flat out.
	Speed float64
	// BadLines is how many lines that cannot be used are left out before the
	// run ends with an error. Default 100; negative: none.
	BadLines int
	// OnBadLine is told about each; nil: only the first few are in the report.
	OnBadLine func(BadLine)
}

// BadLine is a line that cannot be used. Number counts from 1, as editors do.
type BadLine struct {
	Number int64  `json:"line"`
	Reason string `json:"reason"`
}

const (
	maxLineBytes = 64 << 10
	keptBadLines = 20 // in the report
)

var columns = []string{"time", "user", "kind", "target", "state"}

func (r *Replay) check() error {
	var errs []error
	if r.format() == "" {
		errs = append(errs, fmt.Errorf("load: replay: %q does not end in .csv, .jsonl or .ndjson", r.Path))
	}
	if !(r.Speed >= 0) || math.IsInf(r.Speed, 0) {
		errs = append(errs, fmt.Errorf("load: replay: speed %v is not 0 (flat out) or times real time", r.Speed))
	}
	return errors.Join(errs...)
}

func (r *Replay) format() string {
	switch ext := strings.ToLower(filepath.Ext(r.Path)); ext {
	case ".csv", ".jsonl":
		return ext
	case ".ndjson":
		return ".jsonl"
	}
	return ""
}

// replayer reads a log line by line.
type replayer struct {
	config Replay
	limit  int64 // commands; 0: no end
	parse  func(line []byte) (entry, error)
	in     *bufio.Reader
	close  func() error

	line     int64
	commands int64
	first    time.Time
	due      time.Duration
	report   ReplayReport
}

// ReplayReport says what became of the file's lines.
type ReplayReport struct {
	Path     string    `json:"path"`
	Speed    float64   `json:"speed"`
	Lines    int64     `json:"lines"`
	Commands int64     `json:"commands"`
	BadLines int64     `json:"badLines"`
	Bad      []BadLine `json:"bad,omitempty"` // the first ones
	// Backwards are the lines whose time is before the line above; they are
	// sent right after it.
	Backwards int64 `json:"backwards"`
}

// entry is one line.
type entry struct {
	at       time.Time
	relation topology.Relation
	state    topology.State
}

func openReplay(c Replay, commands int64) (*replayer, error) {
	f, err := os.Open(c.Path)
	if err != nil {
		return nil, fmt.Errorf("opening the log to replay: %w", err)
	}
	r, err := newReplayer(c, commands, f)
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	r.close = f.Close
	return r, nil
}

func newReplayer(c Replay, commands int64, in io.Reader) (*replayer, error) {
	if c.BadLines == 0 {
		c.BadLines = 100
	}
	r := &replayer{config: c, limit: commands, in: bufio.NewReaderSize(in, maxLineBytes), close: func() error { return nil }}
	r.report.Path, r.report.Speed = c.Path, c.Speed
	if c.format() == ".jsonl" {
		r.parse = parseJSONLine
		return r, nil
	}
	header, err := r.readLine()
	if err != nil {
		return nil, fmt.Errorf("reading the header of %s: %w", c.Path, err)
	}
	if r.parse, err = csvParser(header); err != nil {
		return nil, fmt.Errorf("reading the header of %s: %w", c.Path, err)
	}
	return r, nil
}

func (r *replayer) next() (*command, time.Duration, error) {
	if r.limit > 0 && r.commands == r.limit {
		return nil, 0, io.EOF
	}
	for {
		line, err := r.readLine()
		if errors.Is(err, io.EOF) {
			return nil, 0, io.EOF
		}
		if err != nil && !errors.Is(err, errLongLine) {
			return nil, 0, fmt.Errorf("reading line %d of %s: %w", r.line, r.config.Path, err)
		}
		if err == nil && len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var e entry
		if err == nil {
			e, err = r.parse(line)
		}
		if err != nil {
			if err := r.bad(err); err != nil {
				return nil, 0, err
			}
			continue
		}
		r.commands++
		r.report.Commands++
		return &command{number: r.commands, relation: e.relation, desired: e.state}, r.schedule(e.at), nil
	}
}

// schedule is when the entry is due, not before the one above it.
func (r *replayer) schedule(at time.Time) time.Duration {
	if r.config.Speed == 0 {
		return -1
	}
	if r.commands == 1 {
		r.first = at
	}
	due := time.Duration(float64(at.Sub(r.first)) / r.config.Speed)
	if due < r.due {
		r.report.Backwards++
		due = r.due
	}
	r.due = due
	return due
}

// bad counts a line that cannot be used and says when there are too many.
func (r *replayer) bad(reason error) error {
	b := BadLine{Number: r.line, Reason: reason.Error()}
	if r.report.BadLines++; len(r.report.Bad) < keptBadLines {
		r.report.Bad = append(r.report.Bad, b)
	}
	if r.config.OnBadLine != nil {
		r.config.OnBadLine(b)
	}
	if r.report.BadLines > int64(max(0, r.config.BadLines)) {
		return fmt.Errorf("replaying %s: %d lines cannot be used, the last is line %d: %w; correct the file or allow more bad lines", r.config.Path, r.report.BadLines, b.Number, reason)
	}
	return nil
}

var errLongLine = fmt.Errorf("the line is longer than %d bytes", maxLineBytes)

// readLine gives the next line without its end, or errLongLine after skipping
// one, or io.EOF.
func (r *replayer) readLine() ([]byte, error) {
	line, err := r.in.ReadSlice('\n')
	if errors.Is(err, io.EOF) && len(line) > 0 {
		err = nil
	}
	if errors.Is(err, io.EOF) {
		return nil, err
	}
	r.line++
	r.report.Lines++
	if errors.Is(err, bufio.ErrBufferFull) {
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = r.in.ReadSlice('\n')
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		return nil, errLongLine
	}
	if err != nil {
		return nil, err
	}
	if r.line == 1 {
		line = bytes.TrimPrefix(line, []byte("\ufeff"))
	}
	return bytes.TrimRight(line, "\r\n"), nil
}

// csvParser reads the header and gives a parser of the lines below it.
func csvParser(header []byte) (func([]byte) (entry, error), error) {
	names, err := csvFields(header)
	if err != nil {
		return nil, err
	}
	places := make([]int, len(columns))
	for i, column := range columns {
		places[i] = -1
		for j, name := range names {
			if strings.EqualFold(strings.TrimSpace(name), column) {
				if places[i] >= 0 {
					return nil, fmt.Errorf("column %s is there twice", column)
				}
				places[i] = j
			}
		}
		if places[i] < 0 {
			return nil, fmt.Errorf("column %s is missing: the first line names the columns %s", column, strings.Join(columns, ","))
		}
	}
	return func(line []byte) (entry, error) {
		fields, err := csvFields(line)
		if err != nil {
			return entry{}, err
		}
		if len(fields) != len(names) {
			return entry{}, fmt.Errorf("the line has %d fields, the header %d", len(fields), len(names))
		}
		return newEntry(fields[places[0]], fields[places[1]], fields[places[2]], fields[places[3]], fields[places[4]])
	}, nil
}

func csvFields(line []byte) ([]string, error) {
	if bytes.IndexByte(line, '"') < 0 {
		return strings.Split(string(line), ","), nil
	}
	fields, err := csv.NewReader(bytes.NewReader(line)).Read()
	if err != nil {
		var p *csv.ParseError
		if errors.As(err, &p) {
			err = fmt.Errorf("column %d: %w", p.Column, p.Err)
		}
		return nil, err
	}
	return fields, nil
}

func parseJSONLine(line []byte) (entry, error) {
	var v struct{ Time, User, Kind, Target, State text }
	if err := json.Unmarshal(line, &v); err != nil {
		return entry{}, fmt.Errorf("the line is not a JSON object of strings and numbers: %w", err)
	}
	return newEntry(string(v.Time), string(v.User), string(v.Kind), string(v.Target), string(v.State))
}

// text is a JSON string, or a number as it is written.
type text string

// UnmarshalJSON reads a string or a number.
func (t *text) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, (*string)(t))
	}
	var n json.Number
	if err := json.Unmarshal(b, &n); err != nil {
		return err
	}
	*t = text(n)
	return nil
}

func newEntry(at, user, kind, target, state string) (entry, error) {
	var e entry
	var err error
	if e.at, err = parseTime(strings.TrimSpace(at)); err != nil {
		return e, err
	}
	if e.relation.Kind, err = topology.ParseKind(strings.TrimSpace(kind)); err != nil {
		return e, err
	}
	e.relation.User, e.relation.Target = user, target
	if err := e.relation.Check(); err != nil {
		return e, err
	}
	e.state, err = topology.ParseState(e.relation.Kind, strings.TrimSpace(state))
	return e, err
}

// parseTime reads the forms of Replay's comment.
func parseTime(s string) (time.Time, error) {
	bad := func() (time.Time, error) {
		return time.Time{}, fmt.Errorf("time %q is neither RFC 3339 nor a number since the Unix epoch", clip(s))
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		switch size := max(n, -n); {
		case size < 1e11:
			return time.Unix(n, 0), nil
		case size < 1e14:
			return time.UnixMilli(n), nil
		case size < 1e17:
			return time.UnixMicro(n), nil
		}
		return time.Unix(0, n), nil
	}
	if f, err := strconv.ParseFloat(s, 64); err == nil {
		if !(math.Abs(f) < 1e11) {
			return bad()
		}
		whole, part := math.Modf(f)
		return time.Unix(int64(whole), int64(part*1e9)), nil
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t, nil
	}
	return bad()
}

// clip keeps foreign text short enough for an error.
func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}
