package testenv

import (
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// AwaitCommitted waits until a group has committed everything that a topic has.
// A group that has committed nothing yet has no lag either, hence not by lag.
func AwaitCommitted(t testing.TB, cl *kgo.Client, group, topic string) {
	t.Helper()
	admin := kadm.NewClient(cl)
	Eventually(t, time.Minute, func() error {
		ends, err := admin.ListEndOffsets(t.Context(), topic)
		if err == nil {
			err = ends.Error()
		}
		if err != nil {
			return err
		}
		offsets, err := admin.FetchOffsets(t.Context(), group)
		if err != nil {
			return err
		}
		for partition, end := range ends[topic] {
			if at, _ := offsets.Lookup(topic, partition); at.At < end.Offset {
				return fmt.Errorf("group %s has committed %d of %d in %s/%d", group, at.At, end.Offset, topic, partition)
			}
		}
		if len(ends[topic]) == 0 {
			return fmt.Errorf("topic %s is not listed", topic)
		}
		return nil
	})
}
