package gokakit

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/tidemark/tidemark/internal/testenv"
)

// ranked is tally with an index: a key stands in its group by its count, and
// not at all when the count divides by 3.
type ranked struct{ tally }

func (ranked) Index(key string, value []byte) (Indexed, bool, error) {
	c, err := decodeCell(value)
	group, user, _ := strings.Cut(key[5:], ":")
	return Indexed{Group: group, Item: fmt.Sprintf("%04d%s", c.count, user), Value: fmt.Append(nil, c.version)}, c.count%3 != 0, err
}

// indexOf is the index of values, by group, NUL and item.
func indexOf(index Indexer, values map[string][]byte) map[string]string {
	rows := map[string]string{}
	for key, value := range values {
		if index == nil {
			break
		}
		if r, ok, err := (ranked{}).Index(key, value); err == nil && ok {
			rows[r.Group+"\x00"+r.Item] = string(r.Value)
		}
	}
	return rows
}

// checkIndex compares, at one moment, the index with the values beside it, and
// those with the log.
func (m *storeModel) checkIndex() (wrong string) {
	if m.store.index == nil {
		return ""
	}
	err := m.store.read(func(s *Snapshot) error {
		at, err := s.Offset()
		if err != nil {
			return err
		}
		want := fold(m.log[:at+1]).values
		for _, key := range modelKeys {
			if v, err := s.Get(key); err != nil || string(v) != string(want[key]) {
				return fmt.Errorf("at offset %d, %s is %q, %w; the log says %q", at, key, v, err, want[key])
			}
		}
		rows := indexOf(m.store.index, want)
		have := map[string]string{}
		for _, group := range []string{"g1", "g2", "g3", "none"} {
			err := s.Ascend(group, "", func(item string, value []byte) bool {
				have[group+"\x00"+item] = string(value)
				return true
			})
			if err != nil {
				return err
			}
		}
		if !maps.Equal(have, rows) {
			return fmt.Errorf("at offset %d the index is %q, its values say %q", at, have, rows)
		}
		return nil
	})
	if err != nil {
		return err.Error()
	}
	return ""
}

// The index is that of the values beside it, whatever is acked, frozen,
// flushed, lost, written again or replayed (C2).
func TestIndexAgainstModel(t *testing.T) { rapid.Check(t, modelCheck(ranked{}, 0)) }

// The model must find an index whose rows are not taken away.
func TestIndexModelCanFail(t *testing.T) {
	if !falsified(t, modelCheck(hoarding{asked: map[string]bool{}}, 0)) {
		t.Fatal("the model saw nothing wrong")
	}
}

// hoarding knows no row of a value that it is asked about again, as a store
// does when another value has replaced it.
type hoarding struct {
	ranked
	asked map[string]bool
}

func (h hoarding) Index(key string, value []byte) (Indexed, bool, error) {
	r, ok, err := ranked{}.Index(key, value)
	name := key + " " + string(value)
	ok = ok && !h.asked[name]
	h.asked[name] = true
	return r, ok, err
}

// A page begins behind the item that it is given and ends where its reader
// says; other groups and neighbours of the bounds stay out.
func TestAscend(t *testing.T) {
	s, err := storeOf(ranked{}, vfs.NewMem(), 0, unended, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.close() })
	page := func(after string, limit int) (items []string) {
		t.Helper()
		err := s.read(func(s *Snapshot) error {
			return s.Ascend("g", after, func(item string, value []byte) bool {
				if string(value) != "1" {
					t.Errorf("%s has value %q", item, value)
				}
				items = append(items, item)
				return len(items) < limit
			})
		})
		if err != nil {
			t.Fatal(err)
		}
		return items
	}
	for at := range int64(30) {
		for i, group := range []string{"f", "g", "g0"} {
			offset := 3*at + int64(i)
			w, err := s.testPut(fmt.Sprintf("0000|%s:a%d", group, at), cell{1, uint64(offset) + 1, at, 0})
			if err == nil {
				err = s.testAck(w, offset)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if at == 1 { // so little stays in RAM
			if got := page("", 3); got != nil {
				t.Errorf("before it is shown: %v", got)
			}
		}
	}
	testenv.Eventually(t, time.Minute, func() error {
		all, err := s.show()
		if err == nil && !all {
			err = errors.New("not all is shown")
		}
		return err
	})
	if got := page("", 3); !slices.Equal(got, []string{"0001a1", "0002a2", "0004a4"}) {
		t.Errorf("first page %v", got)
	}
	if got := page("0004a4", 2); !slices.Equal(got, []string{"0005a5", "0007a7"}) {
		t.Errorf("second page %v", got)
	}
	if got := page("0003", 1); !slices.Equal(got, []string{"0004a4"}) {
		t.Errorf("behind what is not there: %v", got)
	}
	if got := page("0029a29", 3); got != nil {
		t.Errorf("behind the last: %v", got)
	}
	if got := page("", 100); len(got) != 20 {
		t.Errorf("%d items in all", len(got))
	}
}

func TestSnapshotOfAClosedStore(t *testing.T) {
	s, err := storeOf(ranked{}, vfs.NewMem(), 0, unended, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	if err := s.read(func(*Snapshot) error { return nil }); !errors.Is(err, errClosed) {
		t.Errorf("reading: %v", err)
	}
	if _, err := s.show(); !errors.Is(err, errClosed) {
		t.Errorf("showing: %v", err)
	}
}
