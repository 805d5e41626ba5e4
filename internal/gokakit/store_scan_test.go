package gokakit

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark/tidemark/internal/testenv"
)

// Acked values are found by the beginnings of their keys wherever they are, each
// at its newest, and what is not acked is not.
func TestAckedUnder(t *testing.T) {
	s, err := storeOf(tally{}, vfs.NewMem(), 0, unended, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.close() })
	offset := int64(0)
	put := func(key string, version uint64) *write {
		t.Helper()
		w, err := s.testPut(key, cell{1, version, 1, 0})
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	acked := func(key string, version uint64) {
		t.Helper()
		if err := s.testAck(put(key, version), offset); err != nil {
			t.Fatal(err)
		}
		offset++
	}
	for i := range 20 {
		for _, user := range []string{"u7", "u77", "u8"} {
			acked(fmt.Sprintf("0000|%s:V%02d", user, i), 1)
		}
	}
	testenv.Eventually(t, time.Minute, func() error {
		all, err := s.show()
		if err == nil && !all {
			err = errors.New("not all is on disk")
		}
		return err
	})
	acked("0000|u7:V03", 2)
	acked("0000|u7:V50", 1)
	put("0000|u7:V60", 1)
	put("0000|u7:V04", 2)
	under, err := s.ackedUnder([]string{"0000|u8:", "0000|u7:", "0000|none:", "0000|zz:"}, 100)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(under["0000|u8:"]); n != 20 || len(under["0000|none:"])+len(under["0000|zz:"]) != 0 {
		t.Errorf("%d of u8, %v of others", n, under["0000|none:"])
	}
	rows := under["0000|u7:"]
	keys := slices.Sorted(maps.Keys(rows))
	if len(keys) != 21 || keys[0] != "0000|u7:V00" || keys[20] != "0000|u7:V50" {
		t.Fatalf("found %v", keys)
	}
	for key, want := range map[string]uint64{"0000|u7:V03": 2, "0000|u7:V04": 1, "0000|u7:V50": 1} {
		if c, err := decodeCell(rows[key]); err != nil || c.seq != want {
			t.Errorf("%s is %+v (%v), want seq %d", key, c, err, want)
		}
	}
	if under, err = s.ackedUnder([]string{"0000|u77:"}, 5); err != nil || len(under["0000|u77:"]) != 6 {
		t.Errorf("of more than 5 it found %d: %v", len(under["0000|u77:"]), err)
	}
}
