package drills

import (
	"context"
	"math/rand/v2"
)

// injection is one sort of harm. do returns when the system has got over it; a
// stuckError says that it did not.
type injection struct {
	about  string
	faults bool // needs a broker that breaks on demand
	do     func(context.Context, *rig, *rand.Rand) error
}

// injections of the projection bench.
var injections = map[string]injection{
	"kill":           {about: "kill -9 of a member at any time", do: killAny},
	"kill-burst":     {about: "kill -9 of a member 1-150 ms after its first record", do: killBurst},
	"kill-recovery":  {about: "kill -9 of a member before it has read its tables' logs", do: killRecovering},
	"kill-rebalance": {about: "kill -9 of a member while partitions move", do: killRebalancing},
	"kill-stopping":  {about: "kill -9 of a member during its graceful stop", do: killStopping},
	"zombie":         {about: "an owner paused past its session, until others have its partitions", do: zombie},
	"late-append":    {about: "old records of the changelog appended to it, as by a paused owner", do: lateAppend},
	"restart":        {about: "graceful restart of half of the members, one after the other", do: rollingRestart},
	"churn":          {about: "a member more, or one less", do: churn},
	"upgrade":        {about: "every member of the previous version becomes one of this, one after the other", do: upgrade},
	"downgrade":      {about: "every member becomes one of the previous version, one after the other", do: downgrade},

	"wipe-state":        {about: "kill -9, local stores gone", do: wipeState},
	"old-state":         {about: "kill -9, local stores replaced by an older copy", do: oldState},
	"disk-full":         {about: "no file of a member can grow any more", do: diskFull},
	"log-truncated":     {about: "the changelog's start moved past the local offset", do: logTruncated},
	"offset-ahead":      {about: "the broker loses its newest records, local offsets are above the end", faults: true, do: offsetAhead},
	"compact":           {about: "the changelogs compacted, then read by a member without local stores", faults: true, do: compact},
	"table-recreated":   {about: "the changelog topic deleted and made anew", do: tableRecreated},
	"display-recreated": {about: "the display table's topic deleted and made anew", do: displayRecreated},
	"input-recreated":   {about: "the input topic deleted and made anew", do: inputRecreated},

	"broker-stop":       {about: "the broker paused for 5-30 s under load", faults: true, do: brokerPause},
	"broker-restart":    {about: "the broker stopped and started again", faults: true, do: brokerRestart},
	"broker-kill":       {about: "kill -9 of the broker", faults: true, do: brokerKill},
	"broker-of-three":   {about: "kill -9 of one broker of three: leaders and coordinators move, and back", do: killNode},
	"broker-slow":       {about: "every answer up to 2 s late, at four times the rate", faults: true, do: brokerSlow},
	"produce-error":     {about: "an error of any kind answered to what members write", faults: true, do: produceError},
	"group-error":       {about: "an error answered to commits, heartbeats, joining", faults: true, do: groupError},
	"fetch-error":       {about: "an error answered to what members read", faults: true, do: fetchError},
	"lost-ack":          {about: "a write done, its connection closed instead of an answer", faults: true, do: lostAck},
	"cut":               {about: "every connection of the members cut", faults: true, do: cut},
	"stall":             {about: "no packet gets through to the members for 10-40 s", faults: true, do: stall},
	"message-too-large": {about: "max.message.bytes of an output far too small", do: messageTooLarge},
}

// known tells whether a bench has an injection.
func known(b Bench, name string) bool {
	if b == System {
		_, ok := systemInjections[name]
		return ok
	}
	_, ok := injections[name]
	return ok
}

func (r *rig) do(ctx context.Context, name string, rnd *rand.Rand) error {
	i := injections[name]
	if err := r.harm(ctx, i.faults, func(ctx context.Context) error { return i.do(ctx, r, rnd) }); err != nil {
		return err
	}
	r.tallies.inject(name)
	return nil
}
