package risk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"
)

// MaxAnswerBytes is the longest answer of the service that is read.
const MaxAnswerBytes = 4 << 10

// questionJSON is a question as the service gets it.
type questionJSON struct {
	UserID         string    `json:"userId"`
	TargetID       string    `json:"targetId"`
	Kind           string    `json:"kind"`
	DesiredState   string    `json:"desiredState"`
	ClientClass    Class     `json:"clientClass"`
	DeviceID       string    `json:"deviceId,omitempty"`
	ClientSequence *uint64   `json:"clientSequence,omitempty"`
	Address        string    `json:"address,omitempty"`
	RequestedAt    time.Time `json:"requestedAt"`
}

func asJSON(q Question) ([]byte, error) {
	j := questionJSON{
		UserID: q.Relation.User, TargetID: q.Relation.Target, Kind: q.Relation.Kind.String(), DesiredState: q.Desired.String(),
		ClientClass: q.Class, DeviceID: q.Device, ClientSequence: q.Sequence, RequestedAt: q.At.UTC(),
	}
	if q.Address != (netip.Addr{}) {
		j.Address = q.Address.String()
	}
	return json.Marshal(j)
}

// readAnswer reads the service's verdict. Fields that it does not know are passed
// over, so that a service can be ahead; its errors repeat nothing of an answer
// but the words of its three fields.
func readAnswer(from io.Reader) (Verdict, error) {
	b, err := io.ReadAll(io.LimitReader(from, MaxAnswerBytes+1))
	if err != nil {
		return Verdict{}, fmt.Errorf("reading the answer: %w", err)
	}
	if len(b) > MaxAnswerBytes {
		return Verdict{}, fmt.Errorf("the answer has more than %d bytes", MaxAnswerBytes)
	}
	var a struct{ Verdict, By, Reason string }
	if json.Unmarshal(b, &a) != nil {
		return Verdict{}, errors.New(`the answer is not JSON such as {"verdict":"hide","by":"risk","reason":"device-farm"}`)
	}
	v, err := parseVerdict(a.Verdict, a.By, a.Reason)
	if err == nil && (v.Action != Allow || v.Reason != "") {
		err = checkReason(a.Reason)
	}
	if err != nil {
		return Verdict{}, fmt.Errorf("the answer's %w", err)
	}
	v.Source = ByService
	return v, nil
}
