package drills

import (
	"context"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/verify"
)

// Verifier compares a whole running system, as `tidemark verify` does.
type Verifier func(ctx context.Context, cfg config.Config) (verify.Report, error)

var systemInjections = map[string]injection{}

func systemDrills() []Drill { return nil }
