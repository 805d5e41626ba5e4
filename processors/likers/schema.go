package likers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Schema reads rows of the likers table.
type Schema struct{}

var _ gokakit.Indexer = Schema{}

// Version is a relation's version, a watermark's seal or a claim's number.
func (Schema) Version(value []byte) (uint64, error) {
	var row tidemarkv1.LikerRow
	if err := decodeRow(value, &row); err != nil {
		return 0, err
	}
	switch body := row.Body.(type) {
	case *tidemarkv1.LikerRow_Relation:
		return body.Relation.Version, nil
	case *tidemarkv1.LikerRow_Watermark:
		return body.Watermark.Seal, nil
	case *tidemarkv1.LikerRow_Claim:
		return body.Claim.Number, nil
	}
	return 0, errors.New("a LikerRow of an unknown sort")
}

// Derive gives nothing: what a value implies is in the ordered index.
func (Schema) Derive(string, []byte, func(gokakit.Derived)) error { return nil }

// Index gives the entry of a relation that is in its target's list: the value
// is its version.
func (Schema) Index(key string, value []byte) (gokakit.Indexed, bool, error) {
	var row tidemarkv1.LikerRow
	if err := decodeRow(value, &row); err != nil {
		return gokakit.Indexed{}, false, err
	}
	r := row.GetRelation()
	if r.GetCurrentLikedAtUs() == 0 {
		return gokakit.Indexed{}, false, nil
	}
	group, user, err := listOf(key)
	if err != nil {
		return gokakit.Indexed{}, false, err
	}
	return gokakit.Indexed{
		Group: group,
		Item:  Frontier{r.CurrentLikedAtUs, user}.item(),
		Value: binary.AppendUvarint(nil, r.Version),
	}, true, nil
}

// listOf finds the list that a liker key belongs to, and its user:
// 0003|0001|000c|like:u7:V9001 is user u7 in group 0001|like:V9001|000c.
func listOf(key string) (group, user string, err error) {
	const (
		generationAt = len("0003|")
		shardAt      = len("0003|0001|")
		relationAt   = len("0003|0001|000c|")
	)
	if len(key) <= relationAt || key[shardAt-1] != '|' || key[relationAt-1] != '|' {
		return "", "", fmt.Errorf("key %.40q is no liker key", key)
	}
	rel := key[relationAt:]
	first, last := strings.IndexByte(rel, ':'), strings.LastIndexByte(rel, ':')
	if first < 0 || first == last {
		return "", "", fmt.Errorf("key %.40q names no relation", key)
	}
	user = rel[first+1 : last]
	if strings.IndexByte(user, '%') >= 0 {
		parsed, err := topology.ParseRelationKey(rel)
		if err != nil {
			return "", "", fmt.Errorf("key %.40q: %w", key, err)
		}
		user = parsed.User
	}
	return list(key[generationAt:shardAt-1], rel[:first]+rel[last:], key[shardAt:relationAt-1]), user, nil
}

// list is the index group of a reverse shard of a target; its parts are as keys
// write them.
func list(generation, target, shard string) string { return generation + "|" + target + "|" + shard }

func decodeRow(value []byte, row *tidemarkv1.LikerRow) error {
	if value == nil {
		return nil
	}
	if err := row.UnmarshalVT(value); err != nil {
		return fmt.Errorf("reading a row of the table: %w", err)
	}
	return nil
}
