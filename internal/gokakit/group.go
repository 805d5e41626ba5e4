package gokakit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
	"github.com/lovoo/goka"

	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// membership stands between goka and sarama's consumer group. Goka logs what
// goes wrong in a session and tries the same again every 5 s, for ever; here
// it ends the attempt, by name. And goka sleeps 5 s between two generations;
// here the next one begins at once.
type membership struct {
	sarama.ConsumerGroup
	attempt *attempt
	watched chan struct{} // closed when no more errors come
}

// advertise has a member tell where it answers for its partitions. The broker
// keeps what members tell and shows it to whoever describes the group. A
// static member that comes back with another address needs no rebalance.
func advertise(cfg *sarama.Config, address string) error {
	if address == "" {
		return nil
	}
	data, err := (&tidemarkv1.MemberData{Address: address}).MarshalVT()
	if err != nil {
		return fmt.Errorf("encoding the member data: %w", err)
	}
	cfg.Consumer.Group.Member.UserData = data
	return nil
}

func (a *attempt) membership(cfg *sarama.Config) goka.ConsumerGroupBuilder {
	cfg.Consumer.Group.ResetInvalidOffsets = a.cfg.SkipLost
	build := goka.ConsumerGroupBuilderWithConfig(cfg)
	return func(brokers []string, group, clientID string) (sarama.ConsumerGroup, error) {
		g, err := build(brokers, group, clientID)
		if err != nil {
			return nil, err
		}
		m := &membership{ConsumerGroup: g, attempt: a, watched: make(chan struct{})}
		go m.watch()
		return m, nil
	}
}

// rejoinPause keeps sessions that end at once from spinning.
const rejoinPause = 100 * time.Millisecond

// Consume is a member of one generation after the other until ctx ends.
func (m *membership) Consume(ctx context.Context, topics []string, h sarama.ConsumerGroupHandler) error {
	for {
		err := m.ConsumerGroup.Consume(ctx, topics, session{h, m.attempt})
		if err != nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(rejoinPause):
		}
	}
}

// Errors hides what watch takes.
func (m *membership) Errors() <-chan error { return nil }

func (m *membership) Close() error {
	err := m.ConsumerGroup.Close()
	<-m.watched
	return err
}

func (m *membership) watch() {
	defer close(m.watched)
	for err := range m.ConsumerGroup.Errors() {
		var c *sarama.ConsumerError
		if errors.As(err, &c) && errors.Is(err, sarama.ErrOffsetOutOfRange) {
			if m.attempt.cfg.SkipLost {
				m.attempt.fail(fmt.Errorf("reading %s/%d: the log has lost records that were not read; group %s goes on with the oldest", c.Topic, c.Partition, m.attempt.group))
				continue
			}
			m.attempt.fail(fmt.Errorf("reading %s/%d: the group's committed offset is not in the log: records were lost to retention, or the topic was made anew; set the offset of group %s by hand once that is understood", c.Topic, c.Partition, m.attempt.group))
			continue
		}
		m.attempt.note(err)
	}
}

// session is goka's handler of one generation.
type session struct {
	sarama.ConsumerGroupHandler
	attempt *attempt
}

func (s session) Setup(g sarama.ConsumerGroupSession) error {
	s.attempt.begin(g.Context())
	err := s.attempt.checkClaims(g.Claims())
	if err == nil {
		g, err = s.attempt.admit(g)
	}
	if err == nil {
		err = s.ConsumerGroupHandler.Setup(g)
	}
	if err != nil {
		s.attempt.fail(fmt.Errorf("taking over partitions: %w", oneLine(err)))
		return err
	}
	s.attempt.joined.Store(time.Now().UnixNano())
	return nil
}

func (s session) Cleanup(g sarama.ConsumerGroupSession) error {
	err := s.ConsumerGroupHandler.Cleanup(g)
	if err != nil {
		s.attempt.fail(fmt.Errorf("giving up partitions: %w", oneLine(err)))
	}
	return err
}

func (s session) ConsumeClaim(g sarama.ConsumerGroupSession, c sarama.ConsumerGroupClaim) error {
	err := s.ConsumerGroupHandler.ConsumeClaim(g, c)
	if err != nil {
		s.attempt.fail(fmt.Errorf("reading %s/%d: %w", c.Topic(), c.Partition(), oneLine(err)))
	}
	return err
}
