package api

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"strings"

	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/privacy"
)

// PrivacyEvents stores what holds for accounts, videos and blocks;
// *privacy.Store is one.
type PrivacyEvents interface {
	Apply(ctx context.Context, e privacy.Event) (applied bool, err error)
}

// Auditor keeps who did what; *control.DB is one.
type Auditor interface {
	Audit(ctx context.Context, e control.Entry) error
}

// PrivacyEventBody is an account, video or block event as the document shows it;
// privacy.ParseEvent reads it. Of a type all fields are there and no other.
type PrivacyEventBody struct {
	_             struct{} `additionalProperties:"false"`
	Type          string   `json:"type" enum:"account,video,block"`
	Version       uint64   `json:"version" minimum:"1" doc:"Rises with each change of the subject, by any amount; what is not higher than the stored one changes nothing"`
	AccountID     string   `json:"accountId,omitempty" minLength:"1" maxLength:"256" doc:"Of an account"`
	VideoID       string   `json:"videoId,omitempty" minLength:"1" maxLength:"256" doc:"Of a video"`
	AuthorID      string   `json:"authorId,omitempty" minLength:"1" maxLength:"256" doc:"Of a video"`
	Status        string   `json:"status,omitempty" enum:"ACTIVE,CLOSED,BANNED,PUBLIC,FRIENDS,PRIVATE,REMOVED,TAKEN_DOWN,DELETED" doc:"Of an account, the first three; of a video, the others"`
	Likers        string   `json:"likers,omitempty" enum:"EVERYONE,AUTHOR,NOBODY" doc:"Of a video: who may see its likers"`
	Favoriters    string   `json:"favoriters,omitempty" enum:"EVERYONE,AUTHOR,NOBODY" doc:"Of a video: who may see who favorited it"`
	Private       bool     `json:"private,omitempty" doc:"Of an account"`
	ShowLikes     bool     `json:"showLikes,omitempty" doc:"Of an account"`
	ShowFavorites bool     `json:"showFavorites,omitempty" doc:"Of an account"`
	ShowFollowing bool     `json:"showFollowing,omitempty" doc:"Of an account"`
	ShowFollowers bool     `json:"showFollowers,omitempty" doc:"Of an account"`
	BlockerID     string   `json:"blockerId,omitempty" minLength:"1" maxLength:"256" doc:"Of a block"`
	BlockedID     string   `json:"blockedId,omitempty" minLength:"1" maxLength:"256" doc:"Of a block"`
	Active        bool     `json:"active,omitempty" doc:"Of a block: false lifts it"`
}

// PrivacyEventAnswer tells what became of an event.
type PrivacyEventAnswer struct {
	Subject string `json:"subject" doc:"The event's key in stream privacy-events" example:"video:V9001"`
	Applied bool   `json:"applied" doc:"False if its version is not higher than the stored one, so that it changed nothing"`
}

// RegisterPrivacyEvents adds the operation that stores such an event at once, for
// deployments whose services do not write to Kafka. Once per API.
func RegisterPrivacyEvents(a *API, events PrivacyEvents, audit Auditor) {
	a.add(operation{
		method: http.MethodPost, path: "/v1/privacy-events", id: "apply-privacy-event", tag: "operators",
		summary: "Say what holds for an account, a video or a block from a version on",
		description: "Deletes, takes down, hides or restores a video, closes an account, blocks a user. It holds for commands, counts and lists as soon as it is answered. " +
			"Needs the role operator; who said what is audited before it is stored. It may be sent again: the version decides.",
		class: "privacy-events",
		body:  reflect.TypeFor[PrivacyEventBody](), result: reflect.TypeFor[PrivacyEventAnswer](),
		problems: []problemKind{kindRoleMissing, kindPrivacyUnavailable},
		handle: func(w http.ResponseWriter, r *http.Request) *Problem {
			who := IdentityOf(r.Context())
			if !who.HasRole(OperatorRole) {
				return roleMissing("privacy events need the role " + OperatorRole)
			}
			text, p := readBody(w, r)
			if p != nil {
				return p
			}
			return a.applyPrivacyEvent(r.Context(), w, who, text, events, audit)
		},
	})
}

func (a *API) applyPrivacyEvent(ctx context.Context, w http.ResponseWriter, who Identity, text string, events PrivacyEvents, audit Auditor) *Problem {
	e, err := privacy.ParseEvent([]byte(text))
	if err != nil {
		return invalid("body", "is refused: "+strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	subject, _, err := privacy.Message(e)
	if err == nil {
		err = audit.Audit(ctx, control.Entry{Who: who.User, Action: "privacy.event", Subject: subject, Detail: map[string]any{"event": e}})
	}
	applied := false
	if err == nil {
		applied, err = events.Apply(ctx, e)
	}
	if err != nil {
		if !errors.Is(ctx.Err(), context.Canceled) {
			a.quiet.warn(ctx, "a privacy event cannot be stored", err)
		}
		return unavailable(kindPrivacyUnavailable, "the event may or may not be stored: send it again, its version decides")
	}
	writeJSON(w, PrivacyEventAnswer{Subject: subject, Applied: applied})
	return nil
}
