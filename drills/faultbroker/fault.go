package faultbroker

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Kind is a sort of fault.
type Kind string

// The kinds.
const (
	// Answer answers a request with an error. Most errors are answered in
	// place of the work; REQUEST_TIMED_OUT and
	// NOT_ENOUGH_REPLICAS_AFTER_APPEND after it, as a broker may.
	Answer Kind = "answer"
	// LoseAck does the work and closes the connection instead of answering.
	LoseAck Kind = "lose-ack"
	// DelayWork holds a request back before the broker sees it.
	DelayWork Kind = "delay-work"
	// DelayAck does the work and holds the answer back.
	DelayAck Kind = "delay-ack"
	// Cut closes every connection of the clients, once.
	Cut Kind = "cut"
	// Stall lets nothing through in either direction, on open connections and
	// on new ones.
	Stall Kind = "stall"
)

// Fault is what to break.
type Fault struct {
	Kind Kind `json:"kind"`
	// Client is the prefix of the client ids that are hit; empty hits all.
	// Answer hits every client.
	Client string `json:"client,omitempty"`
	// Request that is hit, such as Produce (the default), Fetch, OffsetCommit.
	// Stall and Cut hit every request.
	Request string `json:"request,omitempty"`
	// Topic narrows Answer; empty hits all topics.
	Topic string `json:"topic,omitempty"`
	// Error is what Answer says, such as NOT_LEADER_FOR_PARTITION.
	Error string `json:"error,omitempty"`
	// Count of requests to hit; 0: until healed.
	Count int `json:"count,omitempty"`
	// Most is the longest delay of DelayWork and DelayAck; each request is
	// held for a random time up to it.
	Most time.Duration `json:"most,omitempty"`
}

const maxDelay = 5 * time.Minute

// check refuses what cannot be done, by field.
func (f *Fault) check() error {
	if f.Request == "" {
		f.Request = kmsg.Produce.Name()
	}
	if _, err := requestKey(f.Request); err != nil {
		return err
	}
	if f.Count < 0 {
		return fmt.Errorf("fault: count %d is negative", f.Count)
	}
	switch f.Kind {
	case Answer:
		_, err := errorOf(f.Error)
		return err
	case DelayWork, DelayAck:
		if f.Most <= 0 || f.Most > maxDelay {
			return fmt.Errorf("fault: most %v is not in 0..%v", f.Most, maxDelay)
		}
	case LoseAck, Cut, Stall:
	default:
		return fmt.Errorf("fault: kind %q is unknown", f.Kind)
	}
	return nil
}

func requestKey(name string) (kmsg.Key, error) {
	for key := range kmsg.Key(kmsg.MaxKey + 1) {
		if key.Name() == name {
			return key, nil
		}
	}
	return 0, fmt.Errorf("fault: request %q is unknown", name)
}

// maxErrorCode is above every code that Kafka has.
const maxErrorCode = 200

func errorOf(name string) (*kerr.Error, error) {
	for code := int16(-1); code < maxErrorCode; code++ {
		var e *kerr.Error
		if code != 0 && errors.As(kerr.ErrorForCode(code), &e) && e.Message == name {
			return e, nil
		}
	}
	return nil, fmt.Errorf("fault: Kafka has no error %q", name)
}

// ProduceErrors are the errors that a broker may answer to a produce request:
// those that a client tries again, and those that end a record.
func ProduceErrors() (retriable, final []string) {
	retriable = []string{
		kerr.NotLeaderForPartition.Message, kerr.LeaderNotAvailable.Message, kerr.RequestTimedOut.Message,
		kerr.NotEnoughReplicas.Message, kerr.NotEnoughReplicasAfterAppend.Message, kerr.NetworkException.Message,
		kerr.UnknownTopicOrPartition.Message, kerr.KafkaStorageError.Message, kerr.CorruptMessage.Message,
	}
	final = []string{
		kerr.MessageTooLarge.Message, kerr.InvalidRecord.Message, kerr.TopicAuthorizationFailed.Message,
		kerr.ClusterAuthorizationFailed.Message, kerr.PolicyViolation.Message, kerr.InvalidTimestamp.Message,
		kerr.InvalidProducerEpoch.Message, kerr.OutOfOrderSequenceNumber.Message, kerr.UnknownProducerID.Message,
		kerr.UnsupportedForMessageFormat.Message, kerr.UnknownServerError.Message,
	}
	return slices.Clone(retriable), slices.Clone(final)
}

func (f Fault) hits(key int16, client string) bool {
	if !strings.HasPrefix(client, f.Client) {
		return false
	}
	if f.Kind == Stall || f.Kind == Cut {
		return true
	}
	want, err := requestKey(f.Request)
	return err == nil && key == int16(want)
}
