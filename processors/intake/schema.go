package intake

import (
	"fmt"

	"github.com/tidemark/tidemark/internal/gokakit"
)

// Schema reads rows of the intake table.
type Schema struct{}

// suspicions is the group of the derived rows that list suspicions.
const suspicions = "suspicions"

// Version is a ledger's revision; 1 of a suspicion, 2 once it is recorded.
func (Schema) Version(value []byte) (uint64, error) {
	row, err := readRow(value)
	switch {
	case err != nil:
		return 0, err
	case row.GetLedger() != nil:
		return row.GetLedger().Revision, nil
	case row.GetSuspicion().GetRecorded():
		return 2, nil
	case row.GetSuspicion() != nil:
		return 1, nil
	}
	return 0, fmt.Errorf("reading a row of the intake table: it has no body")
}

// Derive lists suspicions, so that a new owner finds them without a scan.
func (s Schema) Derive(key string, value []byte, add func(gokakit.Derived)) error {
	row, err := readRow(value)
	if err != nil || row.GetSuspicion() == nil {
		return err
	}
	version, err := s.Version(value)
	if err != nil {
		return err
	}
	add(gokakit.Derived{Group: suspicions, Item: key, Seq: version, Value: value})
	return nil
}
