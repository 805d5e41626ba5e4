package privacyfeed

import (
	"errors"
	"strings"

	"github.com/tidemark/tidemark/internal/quarantine"
	"github.com/tidemark/tidemark/privacy"
	"github.com/tidemark/tidemark/topology"
)

// maxEventBytes is far above an event with two of the longest ids.
const maxEventBytes = 8 << 10

// decode reads a record of privacy-events. Where it was found does not matter:
// producers place by key as they like. A key of another subject does, since
// then nobody can tell which of the two was meant.
func decode(r topology.Record) (privacy.Event, *quarantine.Refusal) {
	if r.Value == nil {
		return nil, quarantine.Refuse(quarantine.NullPayload, "the record has no value")
	}
	if len(r.Value) > maxEventBytes {
		return nil, quarantine.Refuse(quarantine.Oversized, "the value has %d bytes, more than %d", len(r.Value), maxEventBytes)
	}
	e, key, err := privacy.ParseMessage(r.Value)
	switch {
	case err != nil:
		return nil, quarantine.Refuse(reasonOf(err), "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	case key != r.Key:
		return nil, quarantine.Refuse(quarantine.KeyMismatch, "the key is not that of the event's subject")
	}
	return e, nil
}

// reasonOf is why an event that makes no sense is set aside.
func reasonOf(err error) quarantine.Reason {
	switch {
	case errors.Is(err, privacy.ErrID):
		return quarantine.InvalidID
	case errors.Is(err, privacy.ErrVersion):
		return quarantine.InvalidVersion
	case errors.Is(err, privacy.ErrValue):
		return quarantine.UnknownState
	}
	return quarantine.MalformedRecord
}
