package exports

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/parquet-go/parquet-go"
)

// codec writes and reads the rows of a part.
type codec struct {
	write func(io.Writer) rowWriter
	// read stops at do's first error and returns it.
	read func(f *os.File, do func(Row) error) error
}

type rowWriter interface {
	Write(Row) error
	Close() error
}

var codecs = map[Format]codec{
	Parquet: {newParquetWriter, readParquet},
	CSV:     {newCSVWriter, readCSV},
	JSONL:   {newJSONLWriter, readJSONL},
}

// The columns of every format.
const (
	userColumn    = "userId"
	likedAtColumn = "likedAt"
	versionColumn = "version"
)

var header = []string{userColumn, likedAtColumn, versionColumn}

// likedAtLayout has the microseconds that rows are ordered by, always.
const likedAtLayout = "2006-01-02T15:04:05.000000Z"

// errRow says that a part has what no row is written as.
var errRow = errors.New("not a row")

type csvWriter struct{ *csv.Writer }

func newCSVWriter(w io.Writer) rowWriter {
	c := csvWriter{csv.NewWriter(w)}
	_ = c.Writer.Write(header) // Close tells
	return c
}

func (c csvWriter) Write(r Row) error {
	return c.Writer.Write([]string{r.User, r.LikedAt.Format(likedAtLayout), strconv.FormatUint(r.Version, 10)})
}

func (c csvWriter) Close() error {
	c.Flush()
	return c.Error()
}

func readCSV(f *os.File, do func(Row) error) error {
	r := csv.NewReader(bufio.NewReader(f))
	r.FieldsPerRecord, r.ReuseRecord = len(header), true
	for n := 0; ; n++ {
		record, err := r.Read()
		switch {
		case errors.Is(err, io.EOF) && n > 0:
			return nil
		case err != nil:
			return fmt.Errorf("record %d: %w", n+1, err)
		case n == 0 && !slices.Equal(record, header):
			return fmt.Errorf("the first record is not the header: %w", errRow)
		case n == 0:
			continue
		}
		row, err := textRow(record[0], record[1], record[2])
		if err == nil {
			err = do(row)
		}
		if err != nil {
			return fmt.Errorf("record %d: %w", n+1, err)
		}
	}
}

func textRow(user, likedAt, version string) (Row, error) {
	at, err := time.Parse(likedAtLayout, likedAt)
	if err != nil {
		return Row{}, fmt.Errorf("likedAt: %w", errRow)
	}
	v, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return Row{}, fmt.Errorf("version: %w", errRow)
	}
	return Row{user, at, v}, nil
}

type jsonRow struct {
	User    string      `json:"userId"`
	LikedAt string      `json:"likedAt"`
	Version json.Number `json:"version"`
}

type jsonlWriter struct {
	buf *bufio.Writer
	enc *json.Encoder
}

func newJSONLWriter(w io.Writer) rowWriter {
	j := jsonlWriter{buf: bufio.NewWriter(w)}
	j.enc = json.NewEncoder(j.buf)
	j.enc.SetEscapeHTML(false)
	return j
}

func (j jsonlWriter) Write(r Row) error {
	return j.enc.Encode(jsonRow{r.User, r.LikedAt.Format(likedAtLayout), json.Number(strconv.FormatUint(r.Version, 10))})
}

func (j jsonlWriter) Close() error { return j.buf.Flush() }

func readJSONL(f *os.File, do func(Row) error) error {
	d := json.NewDecoder(bufio.NewReader(f))
	d.DisallowUnknownFields()
	for n := 1; ; n++ {
		var j jsonRow
		err := d.Decode(&j)
		if errors.Is(err, io.EOF) {
			return nil
		}
		var row Row
		if err == nil {
			row, err = textRow(j.User, j.LikedAt, j.Version.String())
		}
		if err == nil {
			err = do(row)
		}
		if err != nil {
			return fmt.Errorf("row %d: %w", n, err)
		}
	}
}

type parquetRow struct {
	User    string `parquet:"userId,zstd"`
	LikedAt int64  `parquet:"likedAt,timestamp(microsecond),zstd"`
	Version int64  `parquet:"version,zstd"`
}

// parquetWriter keeps a part's rows until Close: they are one row group.
type parquetWriter struct {
	*parquet.GenericWriter[parquetRow]
}

func newParquetWriter(w io.Writer) rowWriter {
	return parquetWriter{parquet.NewGenericWriter[parquetRow](w, parquet.CreatedBy("tidemark", "1", ""))}
}

func (p parquetWriter) Write(r Row) error {
	_, err := p.GenericWriter.Write([]parquetRow{{r.User, r.LikedAt.UnixMicro(), int64(r.Version)}})
	return err
}

// readParquet takes the library's panics for what they are: a file that is none.
func readParquet(f *os.File, do func(Row) error) (err error) {
	defer func() {
		if x := recover(); x != nil {
			err = fmt.Errorf("%w: %v", errRow, x)
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	file, err := parquet.OpenFile(f, info.Size())
	if err != nil {
		return err
	}
	if want := parquet.SchemaOf(parquetRow{}); !parquet.EqualNodes(file.Schema(), want) {
		return fmt.Errorf("its columns are not those of an export: %w", errRow)
	}
	r := parquet.NewGenericReader[parquetRow](file)
	defer func() { err = errors.Join(err, r.Close()) }()
	rows := make([]parquetRow, 1024)
	for {
		n, err := r.Read(rows)
		for _, row := range rows[:n] {
			if err := do(Row{row.User, time.UnixMicro(row.LikedAt).UTC(), uint64(row.Version)}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
