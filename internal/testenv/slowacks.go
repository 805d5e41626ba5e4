package testenv

import (
	"math/rand/v2"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// SlowAcks delays what is produced to a topic by up to 80 ms, so that a kill
// meets records that are on their way.
func SlowAcks(c *kfake.Cluster, topic string) {
	rnd := rand.New(rand.NewPCG(3, 3))
	c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		for _, t := range req.(*kmsg.ProduceRequest).Topics {
			if t.Topic == topic || c.TopicInfo(topic) != nil && t.TopicID == c.TopicInfo(topic).TopicID {
				pause := time.Duration(rnd.IntN(80)) * time.Millisecond
				c.SleepControl(func() { time.Sleep(pause) })
			}
		}
		return nil, nil, false
	})
}
