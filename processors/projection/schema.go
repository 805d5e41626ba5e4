package projection

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Schema reads rows of the projection table. It walks the wire format in place:
// every row passes here twice, and a full decoding would cost more than all
// else. Its field numbers are those of records.proto, pinned by a test.
type Schema struct{}

// Field numbers of ProjectionRow, ProjectedRelation, SourceWatermark,
// PartialCheckpoint and BucketCount.
const (
	rowRelation         = 1
	rowWatermark        = 2
	rowCheckpoint       = 3
	relationVersion     = 2
	relationBucket      = 8
	relationCommittedAt = 9
	watermarkSeal       = 2
	checkpointOffset    = 1
	bucketSeq           = 3
)

var errRow = errors.New("not a ProjectionRow")

// Version is a relation's version, a watermark's seal, a checkpoint's offset
// plus 1.
func (Schema) Version(value []byte) (uint64, error) {
	kind, body, err := openRow(value)
	if err != nil {
		return 0, err
	}
	switch kind {
	case rowRelation:
		return varintField(body, relationVersion)
	case rowWatermark:
		return varintField(body, watermarkSeal)
	case rowCheckpoint:
		v, err := varintField(body, checkpointOffset)
		return v + 1, err
	}
	return 0, errRow
}

// Derive gives a relation's bucket: group kind:target, item the virtual bucket
// in hexadecimal, value a BucketCount.
func (Schema) Derive(key string, value []byte, add func(gokakit.Derived)) error {
	kind, body, err := openRow(value)
	if err != nil || kind != rowRelation {
		return err
	}
	bucket, err := bytesField(body, relationBucket)
	if err != nil {
		return err
	}
	seq, err := varintField(bucket, bucketSeq)
	if err != nil {
		return err
	}
	group, item, err := bucketOf(key)
	if err != nil {
		return err
	}
	add(gokakit.Derived{Group: group, Item: item, Seq: seq, Value: bucket})
	return nil
}

// bucketOf finds the bucket row of a counted key, 0003|01f2|like:u7:V9001:
// group like:V9001, item 01f2.
func bucketOf(key string) (group, item string, err error) {
	const relationAt = len("0003|01f2|")
	if len(key) <= relationAt || key[4] != '|' || key[9] != '|' {
		return "", "", fmt.Errorf("key %.40q is no counted key", key)
	}
	rel := key[relationAt:]
	first, last := strings.IndexByte(rel, ':'), strings.LastIndexByte(rel, ':')
	if first < 0 || first == last {
		return "", "", fmt.Errorf("key %.40q names no relation", key)
	}
	return rel[:first] + rel[last:], key[5:9], nil
}

// openRow gives the number and bytes of a row's only field.
func openRow(row []byte) (protowire.Number, []byte, error) {
	num, typ, n := protowire.ConsumeTag(row)
	if n < 0 || typ != protowire.BytesType {
		return 0, nil, errRow
	}
	body, m := protowire.ConsumeBytes(row[n:])
	if m < 0 || n+m != len(row) {
		return 0, nil, errRow
	}
	return num, body, nil
}

func varintField(b []byte, want protowire.Number) (uint64, error) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return 0, errRow
		}
		if num == want && typ == protowire.VarintType {
			v, m := protowire.ConsumeVarint(b[n:])
			if m < 0 {
				return 0, errRow
			}
			return v, nil
		}
		m := protowire.ConsumeFieldValue(num, typ, b[n:])
		if m < 0 {
			return 0, errRow
		}
		b = b[n+m:]
	}
	return 0, nil
}

func bytesField(b []byte, want protowire.Number) ([]byte, error) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, errRow
		}
		m := protowire.ConsumeFieldValue(num, typ, b[n:])
		if m < 0 {
			return nil, errRow
		}
		if num == want && typ == protowire.BytesType {
			v, _ := protowire.ConsumeBytes(b[n:])
			return v, nil
		}
		b = b[n+m:]
	}
	return nil, errRow
}

func decodeBucket(value []byte) (*tidemarkv1.BucketCount, error) {
	if value == nil {
		return nil, nil
	}
	b := new(tidemarkv1.BucketCount)
	if err := b.UnmarshalVT(value); err != nil {
		return nil, fmt.Errorf("reading a bucket row: %w", err)
	}
	return b, nil
}

func decodeRow(value []byte) (*tidemarkv1.ProjectionRow, error) {
	row := new(tidemarkv1.ProjectionRow)
	if value == nil {
		return row, nil
	}
	if err := row.UnmarshalVT(value); err != nil {
		return nil, fmt.Errorf("reading a row of the table: %w", err)
	}
	return row, nil
}
