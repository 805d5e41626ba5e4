package gokakit

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"
)

// The model of a store: the log of its changelog, what of it the store was
// told, and the writes that nobody has acked. Everything else follows.
type storeModel struct {
	schema  Schema
	weak    Weakness
	fs      *vfs.MemFS
	store   *store
	log     []logged
	pending []*write
}

type logged struct {
	key   string
	value []byte
}

var modelKeys = []string{"0000|g1:a1", "0000|g1:a2", "0000|g1:b1", "0000|g2:a1", "0000|g2:b1", "0000|g3:a1"}

// folded is the state that a log implies.
type folded struct {
	values map[string][]byte
	rows   map[[2]string][]byte // by group and item
	stale  map[string]bool
}

func fold(log []logged) folded {
	f := folded{map[string][]byte{}, map[[2]string][]byte{}, map[string]bool{}}
	for _, r := range log {
		f.add(r)
	}
	return f
}

func (f folded) add(r logged) {
	if r.value == nil {
		if f.values[r.key] != nil {
			f.stale[r.key] = true
		}
		return
	}
	c, _ := decodeCell(r.value)
	old, _ := decodeCell(f.values[r.key])
	if f.values[r.key] == nil || c.version >= old.version {
		f.values[r.key] = r.value
		delete(f.stale, r.key)
	} else {
		f.stale[r.key] = true
	}
	group, item := tallyRow(r.key)
	name := [2]string{group, item}
	row, _ := decodeCell(f.rows[name])
	if f.rows[name] == nil || c.seq > row.seq {
		f.rows[name] = r.value
	}
}

// newest is what reads must see.
func (m *storeModel) newest() folded {
	f := fold(m.log)
	for _, w := range m.pending {
		f.add(logged{w.key, w.value})
	}
	return f
}

func (m *storeModel) bounds() logBounds {
	return logBounds{end: int64(len(m.log)), topicID: [16]byte{1}}
}

// check compares every read with the model; "" when all agree.
func (m *storeModel) check() string {
	want, told := m.newest(), fold(m.log)
	for _, key := range modelKeys {
		v, err := m.store.get(key)
		if err != nil || string(v) != string(want.values[key]) {
			return fmt.Sprintf("get(%s) = %q, %v; the newest write is %q", key, v, err, want.values[key])
		}
		group, item := tallyRow(key)
		v, err = m.store.derived(group, item)
		if err != nil || string(v) != string(want.rows[[2]string{group, item}]) {
			return fmt.Sprintf("derived(%s, %s) = %q, %v; the newest is %q", group, item, v, err, want.rows[[2]string{group, item}])
		}
	}
	if d := m.checkIndex(); d != "" {
		return d
	}
	for _, group := range []string{"g1", "g2", "g3", "none"} {
		if d := m.checkGroup(group, told); d != "" {
			return d
		}
	}
	if stale := m.store.staleKeys(); !slices.Equal(stale, slices.Sorted(maps.Keys(told.stale))) {
		return fmt.Sprintf("stale keys %v, the log says %v", stale, told.stale)
	}
	return ""
}

func (m *storeModel) checkGroup(group string, told folded) string {
	have := map[[2]string]string{}
	offset, err := m.store.scanGroup(group, func(item string, value []byte) error {
		have[[2]string{group, item}] = string(value)
		return nil
	})
	if err != nil || offset != int64(len(m.log))-1 {
		return fmt.Sprintf("scanGroup(%s) reaches %d, %v; %d are acked", group, offset, err, len(m.log))
	}
	for name, v := range told.rows {
		if name[0] == group && have[name] != string(v) {
			return fmt.Sprintf("scanGroup(%s) has %q for %s, acked is %q", group, have[name], name[1], v)
		}
		delete(have, name)
	}
	if len(have) > 0 {
		return fmt.Sprintf("scanGroup(%s) has rows that nobody acked: %v", group, have)
	}
	return ""
}

// checkDisk says how Pebble differs from the state of the log up to the offset
// that it names (C2: values and derived rows agree).
func checkDisk(s *store, log []logged) string {
	at := s.offset()
	if at >= int64(len(log)) {
		return fmt.Sprintf("the store names offset %d of a log of %d", at, len(log))
	}
	want := fold(log[:at+1])
	have := folded{map[string][]byte{}, map[[2]string][]byte{}, map[string]bool{}}
	index := map[string]string{}
	it, err := s.db.NewIter(nil)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = it.Close() }()
	for it.First(); it.Valid(); it.Next() {
		name, value := string(it.Key()), slices.Clone(it.Value())
		switch name[0] {
		case valueName:
			have.values[name[1:]] = value
		case rowName:
			group, item, _ := cutRow(name)
			have.rows[[2]string{group, item}] = value[8:]
		case indexName:
			index[name[1:]] = string(value)
		case markName:
			have.stale[name[1:]] = true
		}
	}
	if rows := indexOf(s.index, have.values); !maps.Equal(index, rows) {
		return fmt.Sprintf("the index at offset %d is\n%q\nthat of the values beside it is\n%q", at, index, rows)
	}
	same := maps.EqualFunc(have.values, want.values, eq) && maps.EqualFunc(have.rows, want.rows, eq) && maps.Equal(have.stale, want.stale)
	if !same {
		return fmt.Sprintf("the disk at offset %d holds\n%q\n%q\n%v\nthe log says\n%q\n%q\n%v", at, have.values, have.rows, have.stale, want.values, want.rows, want.stale)
	}
	return ""
}

func eq(a, b []byte) bool { return string(a) == string(b) }

func cutRow(name string) (group, item string, ok bool) {
	for i := range name {
		if name[i] == 0 {
			return name[1:i], name[i+1:], true
		}
	}
	return "", "", false
}

func (m *storeModel) put(t *rapid.T) {
	for range rapid.IntRange(1, 20).Draw(t, "puts") {
		key := rapid.SampledFrom(modelKeys).Draw(t, "key")
		f := m.newest()
		c, _ := decodeCell(f.values[key])
		group, item := tallyRow(key)
		row, _ := decodeCell(f.rows[[2]string{group, item}])
		w, err := m.store.testPut(key, cell{c.version + 1, row.seq + 1, row.count + 1, int64(len(m.log))})
		if err != nil {
			t.Fatal(err)
		}
		m.pending = append(m.pending, w)
	}
}

func (m *storeModel) ack(t *rapid.T) {
	for range rapid.IntRange(0, len(m.pending)).Draw(t, "acks") {
		w := m.pending[0]
		m.pending = m.pending[1:]
		w.offset = int64(len(m.log))
		m.log = append(m.log, logged{w.key, w.value})
		if err := m.store.ack([]*write{w}); err != nil {
			t.Fatal(err)
		}
	}
}

func (m *storeModel) repair(t *rapid.T) {
	for _, key := range m.store.staleKeys() {
		v, err := m.store.get(key)
		if err != nil {
			t.Fatal(err)
		}
		w := new(write)
		if err := m.store.put(w, key, v, true); err != nil {
			t.Fatal(err)
		}
		m.pending = append(m.pending, w)
	}
}

// lose forgets the unacked writes, of which some have reached the log, lets
// zombies write late copies and tombstones, and opens the store on fs.
func (m *storeModel) lose(t *rapid.T, fs *vfs.MemFS) {
	for range rapid.IntRange(0, len(m.pending)).Draw(t, "unseen") {
		m.log = append(m.log, logged{m.pending[0].key, m.pending[0].value})
		m.pending = m.pending[1:]
	}
	m.pending = nil
	for range rapid.IntRange(0, 2).Draw(t, "late") {
		if len(m.log) > 0 {
			m.log = append(m.log, m.log[rapid.IntRange(0, len(m.log)-1).Draw(t, "copy")])
		}
	}
	if len(m.log) > 0 && rapid.IntRange(0, 9).Draw(t, "tombstone") == 0 {
		m.log = append(m.log, logged{m.log[0].key, nil})
	}
	s, err := storeOf(m.schema, fs, m.weak, m.bounds(), nil)
	if err != nil {
		t.Fatal(err)
	}
	m.fs, m.store = fs, s
	if d := checkDisk(s, m.log); d != "" {
		t.Fatal(d)
	}
	// Some of the rest is loaded, as at an opening, what comes later replayed.
	loaded := rapid.Int64Range(s.offset(), int64(len(m.log))-1).Draw(t, "loaded")
	if err := s.testLoad(m.log, loaded); err != nil {
		t.Fatal(err)
	}
	if d := checkDisk(s, m.log); d != "" {
		t.Fatal(d)
	}
	for at := loaded + 1; at < int64(len(m.log)); at++ {
		r := m.log[at]
		if _, err := s.replay(r.key, r.value, at); err != nil {
			t.Fatal(err)
		}
	}
}

// testLoad loads a log up to and including an offset.
func (s *store) testLoad(log []logged, to int64) error {
	l := newLoader(s)
	for at := s.offset() + 1; at <= to; at++ {
		r := &kgo.Record{Key: []byte(log[at].key), Value: log[at].value, Offset: at}
		if err := l.takeAll(context.Background(), []*kgo.Record{r}); err != nil {
			return err
		}
		r.Key[0] = 'x' // the loader keeps nothing
	}
	return l.finish()
}

// crash reopens what was durable at this moment.
func (m *storeModel) crash(t *rapid.T) {
	fs := m.fs.CrashClone(vfs.CrashCloneCfg{})
	_ = m.store.close()
	m.lose(t, fs)
}

func (m *storeModel) reopen(t *rapid.T) {
	acked := m.store.offset()
	if err := m.store.close(); err != nil {
		t.Fatal(err)
	}
	m.lose(t, m.fs)
	if at := m.store.from; at != acked {
		t.Fatalf("a graceful close left offset %d on disk, %d was acked", at, acked)
	}
}

func (m *storeModel) freeze(t *rapid.T) {
	if err := m.store.locked(m.store.freeze); err != nil {
		t.Fatal(err)
	}
}

func (m *storeModel) flush(t *rapid.T) {
	if err := m.store.flush(); err != nil {
		t.Fatal(err)
	}
}

// TestStoreAgainstModel drives a store at random: reads see the newest writes,
// scanGroup sees acked ones only, and the disk holds exactly a prefix of the
// log after any crash (C2, I3).
func TestStoreAgainstModel(t *testing.T) { rapid.Check(t, modelCheck(tally{}, 0)) }

func modelCheck(schema Schema, weak Weakness) func(*rapid.T) {
	return func(t *rapid.T) {
		m := &storeModel{schema: schema, weak: weak, fs: vfs.NewCrashableMem()}
		s, err := storeOf(schema, m.fs, weak, m.bounds(), nil)
		if err != nil {
			t.Fatal(err)
		}
		m.store = s
		defer func() { _ = m.store.close() }()
		t.Repeat(map[string]func(*rapid.T){
			"put": m.put, "ack": m.ack, "freeze": m.freeze, "flush": m.flush, "repair": m.repair, "crash": m.crash, "reopen": m.reopen,
			"": func(t *rapid.T) {
				if d := m.check(); d != "" {
					t.Fatal(d)
				}
			},
		})
	}
}

// The model must find a store whose mechanisms are switched off.
func TestStoreModelCanFail(t *testing.T) {
	for name, weak := range map[string]Weakness{"gate": WithoutGate, "version": WithoutVersion} {
		t.Run(name, func(t *testing.T) {
			if !falsified(t, modelCheck(tally{}, weak)) {
				t.Fatal("the model saw nothing wrong")
			}
		})
	}
}

// falsified says whether rapid finds a property to be false.
func falsified(t *testing.T, property func(*rapid.T)) bool {
	for name, value := range map[string]string{"rapid.nofailfile": "true", "rapid.shrinktime": "0s"} {
		f := flag.Lookup(name)
		old := f.Value.String()
		if err := f.Value.Set(value); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Value.Set(old) }()
	}
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		rapid.Check(r, property)
	}()
	<-done
	return r.failed.Load()
}

// recorder takes a failure instead of reporting it.
type recorder struct {
	testing.TB
	failed atomic.Bool
}

func (r *recorder) Errorf(string, ...any) { r.failed.Store(true) }
func (r *recorder) Error(...any)          { r.failed.Store(true) }
func (r *recorder) Fail()                 { r.failed.Store(true) }
func (r *recorder) Failed() bool          { return r.failed.Load() }
func (r *recorder) Fatal(...any)          { r.FailNow() }
func (r *recorder) Fatalf(string, ...any) { r.FailNow() }
func (r *recorder) Logf(string, ...any)   {}
func (r *recorder) Log(...any)            {}
func (r *recorder) FailNow() {
	r.failed.Store(true)
	runtime.Goexit()
}
