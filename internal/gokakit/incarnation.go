package gokakit

import (
	"context"
	"encoding/hex"
	"fmt"

	"github.com/IBM/sarama"
)

// A committed offset says that everything below it is in the table. That is
// true of one incarnation of the table's topic only: one that was deleted and
// made anew holds nothing, and a processor that went on from the old offsets
// would count from nothing, in silence. Every commit therefore names the
// table's incarnation in its metadata, and a commit that names another one
// ends the attempt by name (G14 of the bug log). A commit without a name was
// made by hand, and is believed: that is how an operator has the input read
// again.

// incarnation names one of a topic's lives.
func incarnation(topicID [16]byte) string { return "table " + hex.EncodeToString(topicID[:]) }

// admit checks the commits of the claimed partitions against the table, and
// gives the session whose commits name it.
func (a *attempt) admit(g sarama.ConsumerGroupSession) (sarama.ConsumerGroupSession, error) {
	if a.table == "" || a.cfg.weak.has(WithoutLogCheck) {
		return g, nil
	}
	ctx, cancel := context.WithTimeout(a.ctx, adminTimeout)
	defer cancel()
	table, err := a.logs.detail(a.table)
	if err != nil {
		return nil, err
	}
	name := incarnation(table.ID)
	committed, err := a.logs.admin.FetchOffsets(ctx, a.group)
	if err != nil {
		return nil, fmt.Errorf("reading what group %s has committed: %w", a.group, err)
	}
	for topic, partitions := range g.Claims() {
		for _, p := range partitions {
			o, ok := committed.Lookup(topic, p)
			switch {
			case ok && o.Err != nil:
				return nil, fmt.Errorf("reading what group %s has committed in %s/%d: %w", a.group, topic, p, o.Err)
			case ok && o.At >= 0 && o.Metadata != "" && o.Metadata != name:
				return nil, fmt.Errorf("table topic %s was made anew after group %s had committed offset %d of %s/%d: what it held is lost, and counting on would begin at nothing; see \"A topic was deleted and made anew\" in docs/operating.md", a.table, a.group, o.At, topic, p)
			}
		}
	}
	return named{g, name}, nil
}

// named is a session whose commits name the table's incarnation.
type named struct {
	sarama.ConsumerGroupSession
	name string
}

func (n named) MarkOffset(topic string, partition int32, offset int64, _ string) {
	n.ConsumerGroupSession.MarkOffset(topic, partition, offset, n.name)
}

func (n named) MarkMessage(msg *sarama.ConsumerMessage, _ string) {
	n.ConsumerGroupSession.MarkMessage(msg, n.name)
}
