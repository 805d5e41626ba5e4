package privacyfeed

import (
	"bytes"
	"strings"
	"testing"

	"github.com/tidemark/tidemark/internal/quarantine"
	"github.com/tidemark/tidemark/privacy"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

var (
	account = privacy.Account{ID: "u7", Version: 11, Status: privacy.Active, ShowLikes: true}
	video   = privacy.Video{ID: "V:1", Version: 3, Author: "u7", Status: privacy.Public, Likers: privacy.Author, Favoriters: privacy.Nobody}
	block   = privacy.Block{Blocker: "u7", Blocked: "u8", Version: 2, Active: true}
)

func record(t testing.TB, e privacy.Event) topology.Record {
	t.Helper()
	key, value, err := privacy.Message(e)
	if err != nil {
		t.Fatal(err)
	}
	return topology.Record{Key: key, Value: value}
}

func encode(t testing.TB, m *tidemarkv1.PrivacyEvent) []byte {
	t.Helper()
	b, err := m.MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestDecode(t *testing.T) {
	for _, want := range []privacy.Event{account, video, block, privacy.Block{Blocker: "a:b", Blocked: "c|d", Version: 1}} {
		if got, no := decode(record(t, want)); no != nil || got != want {
			t.Errorf("%+v came as %+v, %v", want, got, no)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	blockOf := func(change func(*tidemarkv1.BlockPrivacy)) []byte {
		yes := true
		b := &tidemarkv1.BlockPrivacy{BlockerId: "u7", BlockedId: "u8", Version: 2, Active: &yes}
		change(b)
		return encode(t, &tidemarkv1.PrivacyEvent{Body: &tidemarkv1.PrivacyEvent_Block{Block: b}})
	}
	videoOf := func(v *tidemarkv1.VideoPrivacy) []byte {
		return encode(t, &tidemarkv1.PrivacyEvent{Body: &tidemarkv1.PrivacyEvent_Video{Video: v}})
	}
	accountOf := func(a *tidemarkv1.AccountPrivacy) []byte {
		return encode(t, &tidemarkv1.PrivacyEvent{Body: &tidemarkv1.PrivacyEvent_Account{Account: a}})
	}
	key := topology.BlockKey("u7", "u8")
	for _, c := range []struct {
		name, key string
		value     []byte
		reason    quarantine.Reason
		detail    string
	}{
		{"null", key, nil, quarantine.NullPayload, "no value"},
		{"long", key, bytes.Repeat([]byte{0}, maxEventBytes+1), quarantine.Oversized, "8193 bytes"},
		{"empty", key, []byte{}, quarantine.MalformedRecord, "none of account, video, block"},
		{"not protobuf", key, []byte("{"), quarantine.MalformedRecord, "not a PrivacyEvent"},
		{"no active", key, blockOf(func(b *tidemarkv1.BlockPrivacy) { b.Active = nil }), quarantine.MalformedRecord, "active is missing"},
		{"no private", "account:u7", accountOf(&tidemarkv1.AccountPrivacy{AccountId: "u7", Version: 1, Status: 1}), quarantine.MalformedRecord, "private is missing"},
		{"no version", key, blockOf(func(b *tidemarkv1.BlockPrivacy) { b.Version = 0 }), quarantine.InvalidVersion, "version 0"},
		{"version over 2^63", key, blockOf(func(b *tidemarkv1.BlockPrivacy) { b.Version = 1 << 63 }), quarantine.InvalidVersion, "version 9223372036854775808"},
		{"no id", key, blockOf(func(b *tidemarkv1.BlockPrivacy) { b.BlockerId = "" }), quarantine.InvalidID, "blockerId is empty"},
		{"id of odd bytes", key, blockOf(func(b *tidemarkv1.BlockPrivacy) { b.BlockerId = "secret\x00" }), quarantine.InvalidID, "control character"},
		{"two faults", key, blockOf(func(b *tidemarkv1.BlockPrivacy) { b.Version, b.BlockerId = 0, "" }), quarantine.InvalidID, "; "},
		{"blocks oneself", key, blockOf(func(b *tidemarkv1.BlockPrivacy) { b.BlockerId = "u8" }), quarantine.InvalidID, "nobody blocks themselves"},
		{"unknown status", "video:V1", videoOf(&tidemarkv1.VideoPrivacy{VideoId: "V1", Version: 1, AuthorId: "u7", Status: 99, Likers: 1, Favoriters: 1}), quarantine.UnknownState, "status"},
		{"no audience", "video:V1", videoOf(&tidemarkv1.VideoPrivacy{VideoId: "V1", Version: 1, AuthorId: "u7", Status: 1, Likers: 1}), quarantine.UnknownState, "favoriters"},
		{"another's key", topology.BlockKey("u8", "u7"), blockOf(func(*tidemarkv1.BlockPrivacy) {}), quarantine.KeyMismatch, "subject"},
		{"no key", "", blockOf(func(*tidemarkv1.BlockPrivacy) {}), quarantine.KeyMismatch, "subject"},
	} {
		e, no := decode(topology.Record{Key: c.key, Value: c.value})
		if no == nil || no.Reason != c.reason || !strings.Contains(no.Detail, c.detail) {
			t.Errorf("%s: %+v, %+v, want %s with %q", c.name, e, no, c.reason, c.detail)
			continue
		}
		if strings.Contains(no.Detail, "secret") || strings.Contains(no.Detail, "\n") {
			t.Errorf("%s: detail %q", c.name, no.Detail)
		}
	}
}

// FuzzDecode: whatever comes is an event that reads the same again, or a
// refusal whose detail fits in a line.
func FuzzDecode(f *testing.F) {
	for _, e := range []privacy.Event{account, video, block} {
		r := record(f, e)
		f.Add(r.Key, r.Value)
	}
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		e, no := decode(topology.Record{Key: key, Value: value})
		if (e == nil) == (no == nil) {
			t.Fatalf("%+v, %+v", e, no)
		}
		if no != nil {
			if strings.Contains(no.Detail, "\n") || len(no.Detail) > 2000 {
				t.Fatalf("detail %q", no.Detail)
			}
			return
		}
		if again, no := decode(record(t, e)); no != nil || again != e {
			t.Fatalf("%+v came again as %+v, %v", e, again, no)
		}
	})
}
