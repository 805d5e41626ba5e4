package api

import (
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tidemark/tidemark/topology"
)

// Requests allow no further fields; answers may get more in later versions, so
// a client must pass over those that it does not know.

// CommandBody is the body of a command whose kind has the states S, as the
// document shows it; decode.go reads it.
type CommandBody[S any] struct {
	_              struct{} `additionalProperties:"false"`
	DesiredState   S        `json:"desiredState" doc:"The absolute state that the relation shall have; never a toggle"`
	BaseVersion    uint64   `json:"baseVersion,omitempty" doc:"The relationVersion that the user saw, 0 for a relation that never was. When it is no longer the current one the command is refused (409), unless the deployment lets the last commit win. Left out: no such check"`
	DeviceID       string   `json:"deviceId,omitempty" minLength:"1" maxLength:"128" doc:"The device; checked, kept out of logs, and never deciding an order"`
	ClientSequence uint64   `json:"clientSequence,omitempty" doc:"The device's own number of this command; as deviceId, it decides nothing"`
}

type (
	// LikeState is a state of a like.
	LikeState string
	// FavoriteState is a state of a favorite.
	FavoriteState string
	// FollowState is a state of a follow.
	FollowState string
	// StateName is a state of any kind.
	StateName string
)

func statesSchema(kinds ...topology.Kind) *huma.Schema {
	s := &huma.Schema{Type: huma.TypeString}
	for _, k := range kinds {
		for _, name := range stateNames(k) {
			s.Enum = append(s.Enum, name)
		}
	}
	return s
}

// Schema lists the states of a like.
func (LikeState) Schema(huma.Registry) *huma.Schema { return statesSchema(topology.Like) }

// Schema lists the states of a favorite.
func (FavoriteState) Schema(huma.Registry) *huma.Schema { return statesSchema(topology.Favorite) }

// Schema lists the states of a follow.
func (FollowState) Schema(huma.Registry) *huma.Schema { return statesSchema(topology.Follow) }

// Schema lists the states of every kind.
func (StateName) Schema(huma.Registry) *huma.Schema { return statesSchema(topology.Kinds()...) }

// RelationState is a relation at a version.
type RelationState struct {
	State           StateName  `json:"state"`
	RelationVersion uint64     `json:"relationVersion" doc:"The relation's own number: up by one with each transition; 0 for a relation that never was"`
	StateChangedAt  *time.Time `json:"stateChangedAt" doc:"Time of the transaction that made that transition; null with version 0"`
}

// OperationResult is what one operation did when it was decided; it never
// changes.
type OperationResult struct {
	Outcome         string    `json:"outcome" enum:"APPLIED,UNCHANGED,REJECTED,LIMITED" doc:"APPLIED: it made a transition. UNCHANGED: the relation already had the desired state. REJECTED: its base version was stale. LIMITED: the relation was changed too often of late, so that the command was not made, and is not remembered"`
	State           StateName `json:"state" doc:"The relation's state after the operation"`
	RelationVersion uint64    `json:"relationVersion" doc:"The relation's version after the operation"`
	DecidedAt       time.Time `json:"decidedAt"`
}

// CommandAnswer answers a command. state, relationVersion and stateChangedAt
// are those of currentRelation, so that a client which reads nothing else
// never takes an old operation's result for the present.
type CommandAnswer struct {
	RelationState
	OperationID      string          `json:"operationId" doc:"The command's Idempotency-Key"`
	CountConsistency string          `json:"countConsistency" enum:"EVENTUAL" doc:"Counts follow by themselves; this answer says nothing of them"`
	Replayed         bool            `json:"replayed" doc:"True if an earlier request decided the operation"`
	OperationResult  OperationResult `json:"operationResult" doc:"What the operation did when it was decided, which for a late retry is the past"`
	CurrentRelation  RelationState   `json:"currentRelation" doc:"The relation as it was committed when this answer was made"`
}

// OperationAnswer tells what became of an operation.
type OperationAnswer struct {
	CommandAnswer
	Kind         string    `json:"kind" enum:"like,favorite,follow"`
	TargetID     string    `json:"targetId"`
	DesiredState StateName `json:"desiredState"`
}

// VideosQuery is the body of a batch query over videos.
type VideosQuery struct {
	_                   struct{}          `additionalProperties:"false"`
	VideoIDs            []string          `json:"videoIds" nullable:"false" maxItems:"200" minLength:"1" maxLength:"256" doc:"The videos, in the order that the answer shall have; the same id may come again"`
	MinRelationVersions map[string]uint64 `json:"minRelationVersions,omitempty" maxProperties:"200" doc:"By video id, the relationVersion that the client has already seen: the answer is looked up where it is not lower"`
}

// UsersQuery is the body of a batch query over users.
type UsersQuery struct {
	_                   struct{}          `additionalProperties:"false"`
	UserIDs             []string          `json:"userIds" nullable:"false" maxItems:"200" minLength:"1" maxLength:"256" doc:"The users, in the order that the answer shall have; the same id may come again"`
	MinRelationVersions map[string]uint64 `json:"minRelationVersions,omitempty" maxProperties:"200" doc:"By user id, the relationVersion that the client has already seen: the answer is looked up where it is not lower"`
}

// BatchItem is one target of a batch answer, but for its id.
type BatchItem struct {
	MyState         StateName  `json:"myState" doc:"The token's user's relation to the target, a committed fact"`
	RelationVersion uint64     `json:"relationVersion" doc:"Of myState; 0 if there never was a relation"`
	DisplayCount    int64      `json:"displayCount" doc:"The public count, eventually consistent: it may lag behind myState"`
	CountSnapshotAt *time.Time `json:"countSnapshotAt" doc:"When displayCount was made; null if nobody has ever related to the target, so that the count is 0"`
	Withdrawn       string     `json:"withdrawn,omitempty" enum:"DELETED,TAKEN_DOWN,REMOVED,CLOSED,BANNED" doc:"Why the count is not shown: displayCount is 0 then. It is left out of a count that is shown"`
	BelowMinimum    bool       `json:"belowMinimum,omitempty" doc:"True if the fact itself is below the minRelationVersions entry: the client saw a version that this system does not have"`
}

// VideoItem is one video of a batch answer.
type VideoItem struct {
	VideoID string `json:"videoId"`
	BatchItem
}

// UserItem is one user of a batch answer.
type UserItem struct {
	UserID string `json:"userId"`
	BatchItem
}

// VideosAnswer answers a batch query over videos.
type VideosAnswer struct {
	Items []VideoItem `json:"items" nullable:"false" doc:"One for each id of the query, in its order"`
}

// UsersAnswer answers a batch query over users.
type UsersAnswer struct {
	Items []UserItem `json:"items" nullable:"false" doc:"One for each id of the query, in its order"`
}

// CountAnswer is a target's count and what it includes.
type CountAnswer struct {
	Kind             string      `json:"kind" enum:"like,favorite,follow"`
	TargetID         string      `json:"targetId"`
	Active           int64       `json:"active" doc:"Relations in the counted state (LIKED, FAVORITED, FOLLOWING), but for those that are hidden"`
	Disliked         int64       `json:"disliked" doc:"Relations in DISLIKED; 0 for kinds without it"`
	DisplayCount     int64       `json:"displayCount" doc:"What to show: active, or 0 if the count is withdrawn"`
	Raw              *int64      `json:"raw,omitempty" doc:"All relations in the counted state. Told, as the next two, to the role operator only"`
	RiskHidden       *int64      `json:"riskHidden,omitempty" doc:"Of raw, those that risk hides"`
	PolicyHidden     *int64      `json:"policyHidden,omitempty" doc:"Of raw, those that policy hides. active is what is left"`
	Withdrawn        string      `json:"withdrawn,omitempty" enum:"DELETED,TAKEN_DOWN,REMOVED,CLOSED,BANNED" doc:"Why the count is not shown: displayCount is 0 then, and active and disliked are told to the role operator only. It is left out of a count that is shown"`
	Found            bool        `json:"found" doc:"False if nobody has ever related to the target"`
	GeneratedAt      *time.Time  `json:"generatedAt" doc:"When this count was made; null if not found"`
	CommittedAt      *time.Time  `json:"committedAt" doc:"Commit of the newest change inside; null if not known"`
	Seq              uint64      `json:"seq" doc:"Number of this count among the target's: a higher one is newer; 0 if not found"`
	Generation       uint64      `json:"generation" doc:"Projection generation; 0 if not found"`
	ManifestID       uint64      `json:"manifestId" doc:"Route manifest that the count was made under; 0 if not found"`
	Partials         int         `json:"partials" doc:"Count partitions that contribute"`
	AsOf             []CountAsOf `json:"asOf" nullable:"false" doc:"By source shard, the newest seal up to which the count is complete; a shard that is not listed has not been proven yet"`
	StalenessSeconds *float64    `json:"stalenessSeconds" doc:"Time since the oldest seal of asOf: every change committed before it is included; null while a shard is missing in asOf"`
}

// CountAsOf is a source shard's position that a count includes whole.
type CountAsOf struct {
	Shard             int       `json:"shard"`
	Seal              uint64    `json:"seal" doc:"Dense number of the seal in its shard"`
	PreviousCommitLSN string    `json:"previousCommitLsn" doc:"PostgreSQL log position of the commit before the seal's" example:"0/16B3748"`
	LSN               string    `json:"lsn" doc:"PostgreSQL log position of the seal" example:"0/16B3790"`
	SealedAt          time.Time `json:"sealedAt"`
}
