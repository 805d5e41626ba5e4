// Command tidemark counts likes, favorites and follows, and can prove each
// count. One binary; `tidemark dev` runs everything on this machine, `tidemark
// run ROLE...` a part of it.
//
//	commands ──▶ PostgreSQL shard (fact + outbox, one transaction; seals)
//	                  ▼
//	cdc ─────▶ topic cdc
//	                  ▼
//	intake ──▶ bucket-changes, liker-changes, facts, quarantine
//	                  ▼                 ▼
//	projection ──▶ projection table     likers ──▶ likers table, ordered lists
//	                  ▼
//	           partial-counts
//	                  ▼
//	display ─▶ display table
//	                  ▼
//	queries ─▶ HTTP, own states from Redis first
//	                  ▲
//	cachefloor ▶ cachefloor table, then Redis: from facts
//	                  ▲
//	privacy ─▶ control database: who may see what, from topic privacy-events
//
// roles.go builds these actors in that order; process.go runs them and says
// which are ready; dev.go puts infrastructure below them.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() { os.Exit(tidemark()) }

func tidemark() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	cmd, err := newRoot().ExecuteContextC(ctx)
	explain(os.Stderr, cmd, err)
	return exitCode(err)
}
