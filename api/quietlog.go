package api

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// quietLog reports trouble that every request may hit (a database is down) at
// most once a second, with the number of reports left out.
type quietLog struct {
	log     *slog.Logger
	last    atomic.Int64 // Unix nanoseconds
	leftOut atomic.Int64
}

func (q *quietLog) warn(ctx context.Context, msg string, err error) {
	now, last := time.Now().UnixNano(), q.last.Load()
	if now-last < int64(time.Second) || !q.last.CompareAndSwap(last, now) {
		q.leftOut.Add(1)
		return
	}
	q.log.LogAttrs(ctx, slog.LevelWarn, msg, slog.Any("error", err), slog.Int64("left_out", q.leftOut.Swap(0)), traceAttr(ctx))
}
