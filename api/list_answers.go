package api

import "time"

// LikedVideo is an entry of a user's likes.
type LikedVideo struct {
	VideoID string    `json:"videoId"`
	LikedAt time.Time `json:"likedAt" doc:"The relation's stateChangedAt"`
}

// FavoritedVideo is an entry of a user's favorites.
type FavoritedVideo struct {
	VideoID     string    `json:"videoId"`
	FavoritedAt time.Time `json:"favoritedAt" doc:"The relation's stateChangedAt"`
}

// FollowedUser is an entry of those that a user follows.
type FollowedUser struct {
	UserID     string    `json:"userId"`
	FollowedAt time.Time `json:"followedAt" doc:"The relation's stateChangedAt"`
}

// Liker is an entry of a video's likers.
type Liker struct {
	UserID  string    `json:"userId"`
	LikedAt time.Time `json:"likedAt" doc:"The relation's stateChangedAt; a like that was taken back and given again has the later one"`
}

// Favoriter is an entry of those who have a video as a favorite.
type Favoriter struct {
	UserID      string    `json:"userId"`
	FavoritedAt time.Time `json:"favoritedAt" doc:"The relation's stateChangedAt"`
}

// Follower is an entry of a user's followers.
type Follower struct {
	UserID     string    `json:"userId"`
	FollowedAt time.Time `json:"followedAt" doc:"The relation's stateChangedAt"`
}

// ListAnswer is a page of a list with entries I.
type ListAnswer[I any] struct {
	Items         []I             `json:"items" nullable:"false" doc:"Newest first; at most pageSize"`
	NextPageToken *string         `json:"nextPageToken" doc:"The pageToken of the next page; null at the end of the list, and only there"`
	AsOf          *time.Time      `json:"asOf" doc:"Every change that was committed before is in the page; null while a source shard is missing in watermarks"`
	Watermarks    []ListWatermark `json:"watermarks" nullable:"false" doc:"By source shard, the newest seal up to which the page is complete; a shard that is not listed has not been proven yet"`
	Standby       bool            `json:"standby,omitempty" doc:"True when a copy answered for a part of the list whose owner was away: the page may lack what an earlier one had, and asOf says since when; else left out"`
}

// ListWatermark is how far a list has followed a source shard.
type ListWatermark struct {
	Shard    int       `json:"shard"`
	Seal     uint64    `json:"seal" doc:"Dense number of the seal in its shard"`
	SealedAt time.Time `json:"sealedAt"`
}

// LikerSummaryAnswer is what is shown beside a video.
type LikerSummaryAnswer struct {
	VideoID         string          `json:"videoId"`
	UserIDs         []string        `json:"userIds" nullable:"false" doc:"The newest likers who may be shown, newest first; of the newest 50 at most 5"`
	DisplayCount    int64           `json:"displayCount" doc:"The public count, which has its own time: the two may differ for a moment"`
	CountSnapshotAt *time.Time      `json:"countSnapshotAt" doc:"When displayCount was made; null if nobody has ever related to the video"`
	AsOf            *time.Time      `json:"asOf" doc:"Of userIds, as in a list"`
	Watermarks      []ListWatermark `json:"watermarks" nullable:"false" doc:"Of userIds, as in a list"`
	Standby         bool            `json:"standby,omitempty" doc:"Of userIds, as in a list"`
}

// listEnd is what a page says beside its entries.
type listEnd struct {
	next       *string
	asOf       *time.Time
	watermarks []ListWatermark
	standby    bool
}

// answerOf makes the answer of a list whose entries item writes.
func answerOf[I any](item func(listed) I) func([]listed, listEnd) any {
	return func(entries []listed, end listEnd) any {
		items := make([]I, len(entries))
		for i, e := range entries {
			items[i] = item(e)
		}
		return ListAnswer[I]{Items: items, NextPageToken: end.next, AsOf: end.asOf, Watermarks: end.watermarks, Standby: end.standby}
	}
}
