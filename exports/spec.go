package exports

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tidemark/tidemark/topology"
)

// ErrSpec says that there is no such export.
var ErrSpec = errors.New("no such export")

// Format is how rows are written.
type Format string

// The formats.
const (
	Parquet Format = "parquet"
	CSV     Format = "csv"
	JSONL   Format = "jsonl" // one JSON object a line
)

// Formats lists the formats.
func Formats() []Format { return []Format{Parquet, CSV, JSONL} }

// Accounts says whose relations become rows.
type Accounts string

// Whose relations become rows.
const (
	// Shown accounts are those that the privacy rules hide from nobody in
	// particular: active and not private.
	Shown Accounts = "shown"
	// All accounts: also private, closed and banned ones.
	All Accounts = "all"
)

// AccountChoices lists them.
func AccountChoices() []Accounts { return []Accounts{Shown, All} }

// MaxPurpose is the most bytes of a purpose.
const MaxPurpose = 500

// Spec is what is asked for.
type Spec struct {
	Kind     topology.Kind `json:"-"`
	KindName string        `json:"kind"`
	Target   string        `json:"targetId"`
	Format   Format        `json:"format"`
	Accounts Accounts      `json:"accounts"`
	// Purpose is what the rows are wanted for; it stands in the audit.
	Purpose string `json:"purpose"`
	// By is who asked.
	By string `json:"by"`
}

// Check names what is wrong.
func (s *Spec) Check() error {
	if s.Kind == 0 {
		s.Kind, _ = topology.ParseKind(s.KindName)
	}
	if !s.Kind.Valid() {
		return fmt.Errorf("%w: kind %.20q is not like, favorite or follow", ErrSpec, s.KindName)
	}
	s.KindName = s.Kind.String()
	if err := topology.CheckID(s.Target); err != nil {
		return fmt.Errorf("%w: target %w", ErrSpec, err)
	}
	if !slices.Contains(Formats(), s.Format) {
		return fmt.Errorf("%w: format %.20q is not one of %v", ErrSpec, s.Format, Formats())
	}
	if !slices.Contains(AccountChoices(), s.Accounts) {
		return fmt.Errorf("%w: accounts %.20q is not one of %v", ErrSpec, s.Accounts, AccountChoices())
	}
	if err := CheckPurpose(s.Purpose); err != nil {
		return fmt.Errorf("%w: %w", ErrSpec, err)
	}
	if s.By == "" {
		return fmt.Errorf("%w: nobody asks for it", ErrSpec)
	}
	return nil
}

// CheckPurpose refuses a purpose that tells nothing.
func CheckPurpose(p string) error {
	switch {
	case strings.TrimSpace(p) == "":
		return errors.New("purpose is empty: say what the rows are wanted for")
	case len(p) > MaxPurpose:
		return fmt.Errorf("purpose has %d bytes, at most %d are allowed", len(p), MaxPurpose)
	case !utf8.ValidString(p) || strings.ContainsFunc(p, unicode.IsControl):
		return errors.New("purpose is not text of one line")
	}
	return nil
}
