package config

import (
	"io"
	"log/slog"
)

// New makes the process's logger, which writes to w. An unknown level counts
// as info; Validate refuses it earlier.
func (l Log) New(w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.Level)); err != nil {
		level = slog.LevelInfo
	}
	opts := &slog.HandlerOptions{Level: level}
	if l.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}
