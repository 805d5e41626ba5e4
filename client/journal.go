package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// A journal is the unsettled queues on disk: an append-only file of lines,
//
//	CRC32C in 8 hex digits, space, JSON, newline
//
// the first of which names the user, and of which the last about a relation is
// true. Every line is synced before what it says is acted on, so a line that is
// cut or wrong is the end of the file as far as anybody was told: what stands
// behind it is overwritten. Its methods need the client's turn.
type journal struct {
	disk disk
	user string
	file file
	size int64 // up to where the file is good
	rest bool  // a write that failed may have left something behind it
	// compacted is the size after the last compaction, min that under which
	// there is none.
	compacted, min int64
}

// A disk holds one journal file.
type disk interface {
	// Open gives the file, made if needed, and all of it.
	Open() (file, []byte, error)
	// Replace puts a new file, synced, in the place of the old one at once:
	// after an error one of the two is there, whole.
	Replace(data []byte) (file, error)
	Close() error
}

type file interface {
	io.WriterAt
	Truncate(size int64) error
	Sync() error
	Close() error
}

// A header is the journal's first line.
type header struct {
	Format int    `json:"tidemarkClientJournal"`
	User   string `json:"user"`
}

const journalFormat = 1

// A record is the queue of a relation; one without a flight is settled.
type record struct {
	Relation  Relation   `json:"relation"`
	Confirmed *Confirmed `json:"confirmed,omitempty"`
	Flight    *operation `json:"flight,omitempty"`
	Intent    State      `json:"intent,omitempty"`
}

func recordOf(r Relation, q queue) record {
	if q.settled() {
		return record{Relation: r}
	}
	return record{Relation: r, Confirmed: q.confirmed, Flight: q.flight, Intent: q.intent}
}

// openJournal reads the unsettled queues of the user.
func openJournal(d disk, user string, min int64) (*journal, map[Relation]queue, error) {
	j := &journal{disk: d, user: user, min: min}
	queues, err := j.open()
	if err != nil {
		return nil, nil, err
	}
	return j, queues, nil
}

func (j *journal) open() (map[Relation]queue, error) {
	f, data, err := j.disk.Open()
	if err != nil {
		return nil, fmt.Errorf("%w: opening it: %w", ErrJournal, err)
	}
	queues, good, err := readJournal(data, j.user)
	if err != nil {
		_ = f.Close() // nothing was written
		return nil, err
	}
	j.file, j.size = f, int64(good)
	if err := j.begin(len(data)); err != nil {
		j.file = nil
		return nil, errors.Join(err, f.Close())
	}
	j.compacted = max(j.compacted, j.size)
	return queues, nil
}

// begin cuts what is behind the good part, which could become good again
// behind a line that fits the gap, and writes the header of a new file.
func (j *journal) begin(length int) error {
	head := line(header{journalFormat, j.user})
	if j.size == 0 && length > len(head) {
		return fmt.Errorf("%w: the file is not a journal", ErrJournal)
	}
	if int64(length) > j.size {
		j.rest = true
		if err := errors.Join(j.file.Truncate(j.size), j.file.Sync()); err != nil {
			return fmt.Errorf("%w: cutting its end: %w", ErrJournal, err)
		}
		j.rest = false
	}
	if j.size == 0 {
		return j.write(head)
	}
	return nil
}

// readJournal reads the good lines of a journal and tells their length.
func readJournal(data []byte, user string) (queues map[Relation]queue, good int, err error) {
	queues = map[Relation]queue{}
	for {
		text, length := firstLine(data[good:])
		if text == nil {
			return queues, good, nil
		}
		if good == 0 {
			if err := checkHeader(text, user); err != nil {
				return nil, 0, err
			}
		} else {
			var r record
			if err := json.Unmarshal(text, &r); err != nil {
				return nil, 0, fmt.Errorf("%w: a record of it cannot be read: %w", ErrJournal, err)
			}
			if r.Flight == nil {
				delete(queues, r.Relation)
			} else {
				queues[r.Relation] = queue{confirmed: r.Confirmed, flight: r.Flight, intent: r.Intent}
			}
		}
		good += length
	}
}

func checkHeader(text []byte, user string) error {
	var h header
	switch err := json.Unmarshal(text, &h); {
	case err != nil || h.Format == 0:
		return fmt.Errorf("%w: the file is not a journal", ErrJournal)
	case h.Format != journalFormat:
		return fmt.Errorf("%w: it has format %d, this code reads %d", ErrJournal, h.Format, journalFormat)
	case h.User != user:
		return fmt.Errorf("%w: it belongs to another user: give each user a file", ErrJournal)
	}
	return nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const sumLength = 9 // hex digits and the space

func line(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // plain structs of valid text
	}
	return fmt.Appendf(nil, "%08x %s\n", crc32.Checksum(text, castagnoli), text)
}

// firstLine is the text of the first line and the line's length; nil when the
// line is cut or its checksum is another.
func firstLine(data []byte) (text []byte, length int) {
	end := bytes.IndexByte(data, '\n')
	if end < sumLength {
		return nil, 0
	}
	text = data[sumLength:end]
	if string(data[:sumLength]) != fmt.Sprintf("%08x ", crc32.Checksum(text, castagnoli)) {
		return nil, 0
	}
	return text, end + 1
}

// append writes the queue of a relation. After an error the next append, or
// close, takes the record's place; only after a kill before that it may be found.
func (j *journal) append(r Relation, q queue) error {
	if j == nil {
		return nil
	}
	if j.file == nil {
		if _, err := j.open(); err != nil {
			return err
		}
	}
	return j.write(line(recordOf(r, q)))
}

func (j *journal) write(b []byte) error {
	j.rest = true
	if _, err := j.file.WriteAt(b, j.size); err != nil {
		return fmt.Errorf("%w: writing: %w", ErrJournal, err)
	}
	if err := j.file.Sync(); err != nil {
		return fmt.Errorf("%w: syncing: %w", ErrJournal, err)
	}
	j.size += int64(len(b))
	j.rest = false
	return nil
}

// long tells whether a journal should be compacted.
func (j *journal) long() bool { return j != nil && j.size > max(j.min, 4*j.compacted) }

// compact writes the queues into a file of their own.
func (j *journal) compact(queues map[Relation]queue) error {
	data := line(header{journalFormat, j.user})
	for r, q := range queues {
		data = append(data, line(recordOf(r, q))...)
	}
	if j.file != nil {
		_ = j.file.Close() // all of it is synced
	}
	f, err := j.disk.Replace(data)
	if err != nil {
		j.file = nil // which of the two is there is seen by opening it
		j.compacted = j.size
		return fmt.Errorf("%w: compacting: %w", ErrJournal, err)
	}
	j.file, j.size, j.compacted = f, int64(len(data)), int64(len(data))
	return nil
}

func (j *journal) close() error {
	if j == nil {
		return nil
	}
	var err error
	if j.file != nil {
		if j.rest {
			err = errors.Join(j.file.Truncate(j.size), j.file.Sync())
		}
		_ = j.file.Close() // all of it is synced
		j.file = nil
	}
	return errors.Join(err, j.disk.Close())
}
