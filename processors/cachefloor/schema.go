package cachefloor

import (
	"errors"
	"fmt"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Schema reads rows of the cachefloor table.
type Schema struct{}

// A row's version is its generation above its relation's version.
const (
	versionBits   = 40
	maxVersion    = 1<<versionBits - 1
	maxGeneration = 1<<(64-versionBits) - 1
)

// Version orders the rows of a key: of a relation by generation, then version.
func (Schema) Version(value []byte) (uint64, error) {
	var row tidemarkv1.FloorRow
	if err := decodeRow(value, &row); err != nil {
		return 0, err
	}
	switch body := row.Body.(type) {
	case *tidemarkv1.FloorRow_Relation:
		return body.Relation.Generation<<versionBits | body.Relation.Version, nil
	case *tidemarkv1.FloorRow_Live:
		return body.Live.Revision, nil
	case *tidemarkv1.FloorRow_Claim:
		return body.Claim.Number, nil
	}
	return 0, errors.New("a FloorRow of an unknown sort")
}

// Derive gives nothing.
func (Schema) Derive(string, []byte, func(gokakit.Derived)) error { return nil }

func decodeRow(value []byte, row *tidemarkv1.FloorRow) error {
	if value == nil {
		return nil
	}
	if err := row.UnmarshalVT(value); err != nil {
		return fmt.Errorf("reading a row of the table: %w", err)
	}
	return nil
}
