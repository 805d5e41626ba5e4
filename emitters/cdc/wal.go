package cdc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// walStream is a replication connection after START_REPLICATION. One goroutine
// calls Receive, another SendStatus: they touch different directions of the
// connection only. Finish and Close come after both.
type walStream struct {
	conn     net.Conn
	frontend *pgproto3.Frontend
	pid      uint32
}

// frame kinds of Receive.
const (
	frameChange    = 'w'
	frameKeepalive = 'k'
)

// frame is one message of the stream. body is valid until the next Receive.
type frame struct {
	kind      byte
	lsn       pglogrepl.LSN // change: its position; keepalive: end of what was sent
	body      []byte        // change: the pgoutput message
	wantReply bool          // keepalive
}

// startTimeout bounds connecting and starting replication.
const startTimeout = 2 * connectTimeout

// openWAL connects and starts replication at the slot's own position. Text
// comes as UTF-8, timestamps as ISO at UTC, whatever role and database say.
//
// Protocol version 1 on purpose: the server then sends a transaction when it
// has committed, whole, with its commit position and time ahead of the rows,
// and keeps a large one in its own spill files. Version 2's streaming would
// send large transactions before their commit, interleaved, so that the
// emitter had to spill them itself until it knows whether they commit; it
// saves time only for transactions above logical_decoding_work_mem (64 MB).
func openWAL(ctx context.Context, url, slotName, publication string, shard int) (*walStream, error) {
	cfg, err := connectConfig(url, fmt.Sprintf("tidemark cdc shard %d", shard))
	if err != nil {
		return nil, err
	}
	for name, v := range map[string]string{
		"replication": "database", "client_encoding": "UTF8", "DateStyle": "ISO, MDY", "TimeZone": "UTC",
	} {
		cfg.RuntimeParams[name] = v
	}
	cfg.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		return pgproto3.NewFrontend(newPacedReader(r), w)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	conn, err := pgconn.ConnectConfig(ctx, &cfg.Config)
	if err != nil {
		return nil, fmt.Errorf("connecting for replication: %w", err)
	}
	err = pglogrepl.StartReplication(ctx, conn, slotName, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names '" + publication + "'"},
	})
	if err != nil {
		closeWAL(conn)
		return nil, fmt.Errorf("starting replication of slot %s: %w", slotName, err)
	}
	// From here on the connection is a stream in both directions, which
	// pgconn's locking does not know.
	hijacked, err := conn.Hijack()
	if err != nil {
		closeWAL(conn)
		return nil, fmt.Errorf("taking over the replication connection: %w", err)
	}
	hijacked.Frontend.SetMaxBodyLen(maxMessageBytes)
	return &walStream{conn: hijacked.Conn, frontend: hijacked.Frontend, pid: hijacked.PID}, nil
}

func closeWAL(conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // the connection is given up
	select {
	case <-conn.CleanupDone():
	case <-ctx.Done():
	}
}

// Receive waits for the next message. It returns errInterrupted after
// Interrupt.
func (w *walStream) Receive() (frame, error) {
	for {
		msg, err := w.frontend.Receive()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return frame{}, errInterrupted
		}
		if err != nil {
			return frame{}, receiveError(err)
		}
		switch m := msg.(type) {
		case *pgproto3.CopyData:
			f, ok, err := parseFrame(m.Data)
			if ok || err != nil {
				return f, err
			}
		case *pgproto3.ErrorResponse:
			return frame{}, fmt.Errorf("PostgreSQL ended the stream: %w", pgconn.ErrorResponseToPgError(m))
		case *pgproto3.CopyDone:
			return frame{}, errors.New("PostgreSQL ended the stream without an error")
		case *pgproto3.NoticeResponse, *pgproto3.ParameterStatus:
		default:
			return frame{}, fmt.Errorf("%w: %T in the stream", ErrProtocol, msg)
		}
	}
}

func receiveError(err error) error {
	var large *pgproto3.ExceededMaxBodyLenErr
	if errors.As(err, &large) {
		return fmt.Errorf("receiving from PostgreSQL: a row is larger than %d bytes: %w", maxMessageBytes, err)
	}
	return fmt.Errorf("receiving from PostgreSQL: %w", err)
}

// parseFrame reads the header of a CopyData message; ok is false for a kind
// that does not matter here.
func parseFrame(data []byte) (f frame, ok bool, err error) {
	if len(data) == 0 {
		return f, false, fmt.Errorf("%w: empty", ErrProtocol)
	}
	f.kind = data[0]
	switch f.kind {
	case frameChange: // kind, position, end of WAL, send time, message
		if len(data) < 25 {
			return f, false, fmt.Errorf("%w: a change of %d bytes", ErrProtocol, len(data))
		}
		f.lsn = pglogrepl.LSN(binary.BigEndian.Uint64(data[1:]))
		f.body = data[25:]
	case frameKeepalive: // kind, end of what was sent, send time, reply wanted
		if len(data) != 18 {
			return f, false, fmt.Errorf("%w: a keepalive of %d bytes", ErrProtocol, len(data))
		}
		f.lsn = pglogrepl.LSN(binary.BigEndian.Uint64(data[1:]))
		f.wantReply = data[17] != 0
	default:
		return f, false, nil
	}
	return f, true, nil
}

// writeTimeout bounds one status update: the server reads them also while it
// waits for us to read.
const writeTimeout = 10 * time.Second

// SendStatus tells the server that everything below confirmed is durable here;
// with ask, that an answer is wanted.
func (w *walStream) SendStatus(confirmed pglogrepl.LSN, ask bool, now time.Time) error {
	return w.write(statusMessage(confirmed, ask, now), writeTimeout)
}

func statusMessage(confirmed pglogrepl.LSN, ask bool, now time.Time) []byte {
	b := make([]byte, 0, 44)
	b = append(b, 'd')
	b = binary.BigEndian.AppendUint32(b, 38)
	b = append(b, 'r')
	for range 3 { // written, flushed, applied
		b = binary.BigEndian.AppendUint64(b, uint64(confirmed))
	}
	b = binary.BigEndian.AppendUint64(b, uint64(now.UnixMicro()-postgresEpochUS))
	if ask {
		return append(b, 1)
	}
	return append(b, 0)
}

func (w *walStream) write(b []byte, limit time.Duration) error {
	if err := w.conn.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return fmt.Errorf("sending to PostgreSQL: %w", err)
	}
	if _, err := w.conn.Write(b); err != nil {
		return fmt.Errorf("sending to PostgreSQL: %w", err)
	}
	return nil
}

// Interrupt makes Receive return.
func (w *walStream) Interrupt() {
	_ = w.conn.SetReadDeadline(time.Unix(1, 0)) // on a closed connection Receive returns anyway
}

// Finish sends a last position, ends the stream in order and waits up to limit
// for the server to agree. Only then is it certain that the server took the
// position: closing with unread input resets the connection, and the status
// could be lost with it.
func (w *walStream) Finish(confirmed pglogrepl.LSN, limit time.Duration) error {
	last := append(statusMessage(confirmed, false, time.Now()), 'c', 0, 0, 0, 4) // and CopyDone
	if err := w.write(last, limit); err != nil {
		return err
	}
	if err := w.conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return fmt.Errorf("ending the stream: %w", err)
	}
	for {
		msg, err := w.frontend.Receive()
		if err != nil {
			return fmt.Errorf("ending the stream: %w", err)
		}
		switch m := msg.(type) {
		case *pgproto3.ReadyForQuery: // the slot is free
			return w.write([]byte{'X', 0, 0, 0, 4}, limit) // Terminate
		case *pgproto3.ErrorResponse:
			return fmt.Errorf("ending the stream: %w", pgconn.ErrorResponseToPgError(m))
		}
	}
}

// Close closes the connection at once.
func (w *walStream) Close() { _ = w.conn.Close() }
