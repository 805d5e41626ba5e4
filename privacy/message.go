package privacy

import (
	"fmt"

	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Message gives an event's key and value in stream privacy-events, or
// ErrInvalid.
func Message(e Event) (key string, value []byte, err error) {
	if err := e.check(); err != nil {
		return "", nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	value, err = e.message().MarshalVT()
	return e.key(), value, err
}

// ParseMessage reads a value of stream privacy-events and gives the key that
// belongs to it. Every field is set: one left out would silently mean false,
// and so more open than was meant. Fields that this version does not know are
// passed over.
func ParseMessage(value []byte) (e Event, key string, err error) {
	var m tidemarkv1.PrivacyEvent
	if m.UnmarshalVT(value) != nil {
		return nil, "", fmt.Errorf("%w: the value is not a PrivacyEvent", ErrInvalid)
	}
	switch body := m.Body.(type) {
	case *tidemarkv1.PrivacyEvent_Account:
		e, err = accountOf(body.Account)
	case *tidemarkv1.PrivacyEvent_Video:
		v := body.Video
		e = Video{v.VideoId, v.Version, v.AuthorId, videoStatuses.of(v.Status), audiences.of(v.Likers), audiences.of(v.Favoriters)}
	case *tidemarkv1.PrivacyEvent_Block:
		b := body.Block
		var w wanted
		e = Block{b.BlockerId, b.BlockedId, b.Version, w.bool("active", b.Active)}
		err = w.err
	default:
		err = fmt.Errorf("it is none of account, video, block")
	}
	if err == nil {
		err = e.check()
	}
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return e, e.key(), nil
}

func accountOf(a *tidemarkv1.AccountPrivacy) (Account, error) {
	var w wanted
	return Account{
		ID: a.AccountId, Version: a.Version, Status: accountStatuses.of(a.Status),
		Private:       w.bool("private", a.Private),
		ShowLikes:     w.bool("show_likes", a.ShowLikes),
		ShowFavorites: w.bool("show_favorites", a.ShowFavorites),
		ShowFollowing: w.bool("show_following", a.ShowFollowing),
		ShowFollowers: w.bool("show_followers", a.ShowFollowers),
	}, w.err
}

// wanted reads fields that must be set, and keeps the first error.
type wanted struct{ err error }

func (w *wanted) bool(field string, value *bool) bool {
	if value == nil {
		if w.err == nil {
			w.err = fmt.Errorf("%s is missing", field)
		}
		return false
	}
	return *value
}

func (a Account) key() string { return topology.AccountKey(a.ID) }
func (v Video) key() string   { return topology.VideoKey(v.ID) }
func (b Block) key() string   { return topology.BlockKey(b.Blocker, b.Blocked) }

func (a Account) message() *tidemarkv1.PrivacyEvent {
	return &tidemarkv1.PrivacyEvent{Body: &tidemarkv1.PrivacyEvent_Account{Account: &tidemarkv1.AccountPrivacy{
		AccountId: a.ID, Version: a.Version, Status: accountStatuses.number(a.Status),
		Private: &a.Private, ShowLikes: &a.ShowLikes, ShowFavorites: &a.ShowFavorites, ShowFollowing: &a.ShowFollowing, ShowFollowers: &a.ShowFollowers,
	}}}
}

func (v Video) message() *tidemarkv1.PrivacyEvent {
	return &tidemarkv1.PrivacyEvent{Body: &tidemarkv1.PrivacyEvent_Video{Video: &tidemarkv1.VideoPrivacy{
		VideoId: v.ID, Version: v.Version, AuthorId: v.Author, Status: videoStatuses.number(v.Status),
		Likers: audiences.number(v.Likers), Favoriters: audiences.number(v.Favoriters),
	}}}
}

func (b Block) message() *tidemarkv1.PrivacyEvent {
	return &tidemarkv1.PrivacyEvent{Body: &tidemarkv1.PrivacyEvent_Block{Block: &tidemarkv1.BlockPrivacy{
		BlockerId: b.Blocker, BlockedId: b.Blocked, Version: b.Version, Active: &b.Active,
	}}}
}

// values maps an enum of the contract to its words. What has no word is "",
// which check refuses.
type values[N, W comparable] map[N]W

func (v values[N, W]) of(number N) W { return v[number] }

func (v values[N, W]) number(word W) (number N) {
	for n, w := range v {
		if w == word {
			return n
		}
	}
	return number
}

var (
	accountStatuses = values[tidemarkv1.AccountStatus, AccountStatus]{
		tidemarkv1.AccountStatus_ACCOUNT_STATUS_ACTIVE: Active,
		tidemarkv1.AccountStatus_ACCOUNT_STATUS_CLOSED: Closed,
		tidemarkv1.AccountStatus_ACCOUNT_STATUS_BANNED: Banned,
	}
	videoStatuses = values[tidemarkv1.VideoStatus, VideoStatus]{
		tidemarkv1.VideoStatus_VIDEO_STATUS_PUBLIC:     Public,
		tidemarkv1.VideoStatus_VIDEO_STATUS_FRIENDS:    FriendsOnly,
		tidemarkv1.VideoStatus_VIDEO_STATUS_PRIVATE:    Private,
		tidemarkv1.VideoStatus_VIDEO_STATUS_REMOVED:    Removed,
		tidemarkv1.VideoStatus_VIDEO_STATUS_TAKEN_DOWN: TakenDown,
		tidemarkv1.VideoStatus_VIDEO_STATUS_DELETED:    Deleted,
	}
	audiences = values[tidemarkv1.Audience, Audience]{
		tidemarkv1.Audience_AUDIENCE_EVERYONE: Everyone,
		tidemarkv1.Audience_AUDIENCE_AUTHOR:   Author,
		tidemarkv1.Audience_AUDIENCE_NOBODY:   Nobody,
	}
)
