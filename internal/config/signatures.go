package config

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/tidemark/tidemark/internal/signature"
)

// Signatures says which requests bear a signature, beside their token.
type Signatures struct {
	// KeyFile is a JWK set of the keys that clients sign with, read again when it
	// changes. Empty: signatures are not looked at.
	KeyFile string `koanf:"key_file"`
	// Required are classes of requests that are refused without one: those of
	// signature.Classes. A signature that is sent is checked in any class.
	Required []string `koanf:"required"`
	// MaxAge is how long a signature is good, 10s..1h: for so long a recorded
	// request may be sent again.
	MaxAge time.Duration `koanf:"max_age"`
}

func (s Signatures) validate(p *problems) {
	for _, class := range s.Required {
		if !slices.Contains(signature.Classes, class) {
			p.add("signatures.required", "%q is not one of %s", class, strings.Join(signature.Classes, ", "))
		}
	}
	if len(s.Required) > 0 && s.KeyFile == "" {
		p.add("signatures.key_file", "is empty, but signatures.required is not: without keys no signature can be checked")
	}
	if s.MaxAge < 10*time.Second || s.MaxAge > time.Hour {
		p.add("signatures.max_age", "%v is not in 10s..1h", s.MaxAge)
	}
}

// Keys reads the key file; nil if signatures are not looked at.
func (s Signatures) Keys(log *slog.Logger) (*signature.KeyFile, error) {
	if s.KeyFile == "" {
		return nil, nil
	}
	keys, err := signature.OpenKeys(s.KeyFile, log)
	if err != nil {
		return nil, fmt.Errorf("signatures.key_file: %w", err)
	}
	return keys, nil
}
