package cache

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tidemark/tidemark/internal/newest"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// HeadOf names a part of a list's head: what one partition of the reverse index
// has of the newest entries of a target.
type HeadOf struct {
	Kind      topology.Kind
	Target    string
	Reverse   uint32 // reverse generation
	Partition int
}

// HeadKey holds a part of a head, a sorted set: entries by their time, newest
// first, and below them all what the part says of itself. Both are one key, so
// that no eviction leaves one without the other.
func (g Generation) HeadKey(of HeadOf) Key {
	return g.newKey(of.Kind.String()+":head", escape(of.Target)+"|r"+strconv.FormatUint(uint64(of.Reverse), 10)+"|p"+strconv.Itoa(of.Partition))
}

// owner is who writes the parts of a partition.
func (of HeadOf) owner(epoch int64) Owner { return Owner{topology.Hex4(of.Partition), epoch} }

// HeadChange brings a part of a head from one of an owner's writes to the next.
type HeadChange struct {
	HeadOf
	// From is what the part said of itself at the owner's write before; nil
	// replaces whatever stands.
	From *tidemarkv1.HeadPart
	// To is what the part says from now on. Its epoch is the owner's.
	To          *tidemarkv1.HeadPart
	Remove, Add []newest.Entry
	// Expire is when the part is gone unless it is written again.
	Expire time.Duration
}

// ErrHeadGone says that a part does not stand as it was written before: evicted,
// expired or lost. It must be written whole.
var ErrHeadGone = errors.New("the part of the head does not stand as it was written")

// HeadWriter writes heads. Only the owner of a partition of the reverse index
// may have one: a part that is written from anything else than its index could
// say that somebody is in a list, or is not, who had been (I8). The linter holds
// everybody else off (forbidigo in .golangci.yml).
type HeadWriter struct{ client *Client }

// NewHeadWriter makes one.
func NewHeadWriter(c *Client) *HeadWriter { return &HeadWriter{c} }

// Entries stand in a set as user, NUL and version, by their time made negative:
// so the set's own order is the list's, newest first and of one time by user,
// since NUL is in no id and below every other byte. Times are whole microseconds
// below 2^53, which scores hold exactly.
const (
	memberEnd = "\x00"
	// maxHeadTime is what a score holds exactly: the year 2255.
	maxHeadTime = 1<<53 - 1
)

func memberOf(e newest.Entry) string {
	return e.User + memberEnd + strconv.FormatUint(e.Version, 10)
}

// headers begin with what no id begins with.
const headerMark = memberEnd

// writeHead takes what the part says of itself from now on, what it must say now
// ("" for a new one), milliseconds to live, how many members go, those members,
// and pairs of score and member that come. It answers 0 when the part says
// something else. A part is without a header while it changes, and stays without
// one, unusable, if that is cut short; one that has no room is removed.
var writeHead = NewScript(`
local next, now = ARGV[4], ARGV[5]
if now == '' then
  redis.call('DEL', KEYS[1])
elseif redis.call('ZREM', KEYS[1], now) == 0 then
  return 0
end
local gone = tonumber(ARGV[7])
for i = 8, 7 + gone do redis.call('ZREM', KEYS[1], ARGV[i]) end
local function add(score, member)
  local done = redis.pcall('ZADD', KEYS[1], score, member)
  return type(done) ~= 'table' or not done.err
end
for i = 8 + gone, #ARGV, 2 do
  if not add(ARGV[i], ARGV[i + 1]) then redis.call('DEL', KEYS[1]) return 2 end
end
if not add('-inf', next) then redis.call('DEL', KEYS[1]) return 2 end
redis.call('PEXPIRE', KEYS[1], ARGV[6])
return 1`)

// Write makes changes, each in one script, and gives an error for each, nil for
// those that are made. After any error but ErrFenced, nothing is known of what
// stands, and the part can be written whole.
func (w *HeadWriter) Write(ctx context.Context, g Generation, changes []HeadChange) []error {
	errs := make([]error, len(changes))
	calls, places := make([]Call, 0, len(changes)), make([]int, 0, len(changes))
	for i, c := range changes {
		call, err := c.call(g)
		if errs[i] = err; err == nil {
			calls, places = append(calls, call), append(places, i)
		}
	}
	for i, reply := range w.client.Run(ctx, writeHead, calls) {
		err := reply.Err
		if n, _ := reply.Value.(int64); err == nil && n != 1 {
			err = ErrHeadGone
		}
		errs[places[i]] = err
	}
	return errs
}

func (c HeadChange) call(g Generation) (Call, error) {
	next, err := headerOf(c.To)
	if err != nil {
		return Call{}, err
	}
	now := ""
	if c.From != nil {
		if now, err = headerOf(c.From); err != nil {
			return Call{}, err
		}
	}
	args := make([]any, 0, 4+len(c.Remove)+2*len(c.Add))
	args = append(args, next, now, c.Expire.Milliseconds(), len(c.Remove))
	for _, e := range c.Remove {
		args = append(args, memberOf(e))
	}
	for _, e := range c.Add {
		if e.LikedAtUs <= 0 || e.LikedAtUs > maxHeadTime {
			return Call{}, fmt.Errorf("an entry's time, %d µs, is beyond what a sorted set holds", e.LikedAtUs)
		}
		args = append(args, -e.LikedAtUs, memberOf(e))
	}
	return Call{Key: g.HeadKey(c.HeadOf), Owner: c.owner(c.To.Epoch), Args: args}, nil
}

// Remove removes parts of lists that have cooled.
func (w *HeadWriter) Remove(ctx context.Context, g Generation, epoch int64, parts []HeadOf) error {
	calls := make([]Call, len(parts))
	for i, of := range parts {
		calls[i] = Call{Key: g.HeadKey(of), Owner: of.owner(epoch)}
	}
	var errs error
	for _, reply := range w.client.Run(ctx, removeHead, calls) {
		errs = errors.Join(errs, reply.Err)
	}
	return errs
}

var removeHead = NewScript(`return redis.call('UNLINK', KEYS[1])`)

func headerOf(p *tidemarkv1.HeadPart) (string, error) {
	b, err := p.MarshalVT()
	return headerMark + string(b), err
}

// HeadRead asks for the beginning of a part of a head.
type HeadRead struct {
	HeadOf
	// FromUs is the time of the newest entry that is wanted, 0 for the newest of
	// all; entries of the same time come too.
	FromUs int64
	Limit  int // entries at most
}

// HeadPart is the beginning of a part of a head as it was at one moment.
type HeadPart struct {
	*tidemarkv1.HeadPart
	Entries []newest.Entry // in the list's order
	// More says that the part has entries behind the last of Entries, or that
	// entries there are not known.
	More bool
	Err  error
}

// ErrNoHead says that there is no such part, or none that may be believed: it
// was left by an owner after whom another one has written.
var ErrNoHead = errors.New("there is no such part of a head")

// readHead takes the first score and how many entries. It gives what the part
// says of itself, the last owner in the part's slot, and members and scores: as
// they are at one moment.
var readHead = newReadingScript(`
local header = redis.call('ZRANGE', KEYS[1], 0, 0)[1]
if not header then return {} end
return {header, tostring(guard[2] or '0'), redis.call('ZRANGEBYSCORE', KEYS[1], ARGV[4], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[5])}`)

// Heads reads parts of heads, pipelined per node.
func (c *Client) Heads(ctx context.Context, g Generation, reads []HeadRead) []HeadPart {
	calls := make([]Call, len(reads))
	for i, r := range reads {
		from := r.FromUs
		if from == 0 {
			from = maxHeadTime // behind the header
		}
		calls[i] = Call{Key: g.HeadKey(r.HeadOf), Owner: r.owner(0), Args: []any{-from, r.Limit}}
	}
	parts := make([]HeadPart, len(reads))
	for i, reply := range c.Run(ctx, readHead, calls) {
		if reply.Err != nil {
			parts[i].Err = reply.Err
			continue
		}
		p, err := parseHead(reply.Value, reads[i])
		if err != nil {
			p = HeadPart{Err: c.named("reading", calls[i].Key, err)}
		}
		parts[i] = p
	}
	return parts
}

func parseHead(value any, r HeadRead) (HeadPart, error) {
	answer, _ := value.([]any)
	if len(answer) == 0 {
		return HeadPart{}, ErrNoHead
	}
	if len(answer) != 3 {
		return HeadPart{}, fmt.Errorf("a part of a head was answered with %d values", len(answer))
	}
	header, _ := answer[0].(string)
	if !strings.HasPrefix(header, headerMark) {
		return HeadPart{}, ErrNoHead // a change of it was cut short
	}
	p := HeadPart{HeadPart: new(tidemarkv1.HeadPart)}
	if err := p.UnmarshalVT([]byte(header[len(headerMark):])); err != nil {
		return HeadPart{}, fmt.Errorf("what a part of a head says of itself cannot be read: %w", err)
	}
	last, _ := answer[1].(string)
	if last != strconv.FormatInt(p.Epoch, 10) {
		return HeadPart{}, fmt.Errorf("the owner of epoch %d wrote it, and one of epoch %s after it: %w", p.Epoch, last, ErrNoHead)
	}
	pairs, _ := answer[2].([]any)
	for i := 0; i+1 < len(pairs); i += 2 {
		e, err := parseMember(pairs[i], pairs[i+1])
		if err != nil {
			return HeadPart{}, err
		}
		p.Entries = append(p.Entries, e)
	}
	p.More = !p.Whole || len(p.Entries) == r.Limit
	return p, nil
}

func parseMember(member, score any) (newest.Entry, error) {
	m, _ := member.(string)
	s, _ := score.(string)
	user, number, ok := strings.Cut(m, memberEnd)
	version, versionErr := strconv.ParseUint(number, 10, 64)
	at, scoreErr := strconv.ParseFloat(s, 64)
	if !ok || versionErr != nil || scoreErr != nil || at >= 0 || at < -maxHeadTime {
		return newest.Entry{}, fmt.Errorf("a head has %.40q at %.20q, which is no entry", m, s)
	}
	return newest.Entry{User: user, LikedAtUs: int64(-at), Version: version}, nil
}
