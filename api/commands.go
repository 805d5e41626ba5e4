package api

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tidemark/tidemark/internal/limits"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

// CommandStore decides commands and remembers them; *relations.Store is one.
type CommandStore interface {
	Set(ctx context.Context, c relations.Command) (relations.Result, error)
	Operation(ctx context.Context, user, operationID string) (relations.Operation, error)
	RelationReader
}

// RegisterCommands adds the operations that set relations, and the look-up of
// an operation whose answer was lost. Once per API.
func RegisterCommands(a *API, store CommandStore) {
	c := commands{api: a, store: store}
	for _, p := range commandPaths {
		a.add(operation{
			method: http.MethodPut, path: p.path, id: "set-" + p.kind.String(), tag: "commands",
			summary:     "Set " + p.what,
			description: "Sets the absolute state; sending it again changes nothing. The answer comes after the commit. A retry carries the same Idempotency-Key and the same body.",
			params: []*huma.Param{idParam("id", p.of), {
				Name: "Idempotency-Key", In: "header", Required: true, Schema: keySchema(),
				Description: "The operation's id, made by the client, one per command; bound to this user, target and body",
			}},
			class:        p.kind.String(),
			limitsItself: true,
			body:         p.body, result: reflect.TypeFor[CommandAnswer](),
			problems: []problemKind{kindAccountInactive, kindTargetUnknown, kindStaleBaseVersion, kindOperationExpired, kindKeyReused, kindStoreUnavailable, kindPrivacyUnavailable, kindRiskRefused, kindRiskUnavailable},
			handle: func(w http.ResponseWriter, r *http.Request) *Problem {
				return c.set(w, r, p.kind)
			},
		})
	}
	a.add(operation{
		method: http.MethodGet, path: "/v1/operations/{operationId}", id: "get-operation", tag: "commands",
		summary:     "What became of an operation",
		description: "For a command whose answer was lost. Only the user that sent it sees it. Not known means that it was not committed until now, or longer ago than operations are kept: sending the command again with the same key is safe either way within that time.",
		params: []*huma.Param{{
			Name: "operationId", In: "path", Required: true, Schema: keySchema(),
			Description: "The command's Idempotency-Key, percent-encoded",
		}},
		result:   reflect.TypeFor[OperationAnswer](),
		problems: []problemKind{kindOperationUnknown, kindOperationExpired, kindStoreUnavailable},
		handle:   c.operation,
	})
}

var commandPaths = []struct {
	kind           topology.Kind
	body           reflect.Type
	path, what, of string
}{
	{topology.Like, reflect.TypeFor[CommandBody[LikeState]](), "/v1/videos/{id}/like-relation", "whether I like, dislike or do neither to a video", "The video's id"},
	{topology.Favorite, reflect.TypeFor[CommandBody[FavoriteState]](), "/v1/videos/{id}/favorite-relation", "whether a video is among my favorites", "The video's id"},
	{topology.Follow, reflect.TypeFor[CommandBody[FollowState]](), "/v1/users/{id}/follow-relation", "whether I follow a user", "The followed user's id"},
}

type commands struct {
	api   *API
	store CommandStore
}

func (c commands) set(w http.ResponseWriter, r *http.Request, kind topology.Kind) *Problem {
	cmd, from, p := readCommand(w, r, kind)
	if p != nil {
		return p
	}
	leave, p := c.api.beginCommand(cmd.Relation.User)
	if p != nil {
		return p
	}
	defer leave.end()
	if p := c.api.limit(w, r, limits.Commands, from.device); p != nil {
		return p
	}
	if p := c.refused(r.Context(), cmd); p != nil {
		return p
	}
	if cmd.Hiding, p = c.judge(r, cmd, from); p != nil {
		return p
	}
	res, held, err := c.setLimited(r.Context(), cmd)
	switch {
	case errors.Is(err, relations.ErrOperationExpired):
		p := expired()
		p.CurrentRelation = ptr(relationState(res.Current))
		return p
	case err != nil:
		return c.api.storeProblem(r.Context(), err, "the command may or may not be committed: send it again with the same Idempotency-Key")
	}
	if !held.OK {
		writeLimited(w, cmd.OperationID, res.Current, held)
		return nil
	}
	if res.Operation.Outcome == relations.Rejected {
		return stale(res)
	}
	writeJSON(w, commandAnswer(cmd.OperationID, res))
	return nil
}

// readCommand reads a command from the request, and who it says that sends it.
// The user is the token's.
func readCommand(w http.ResponseWriter, r *http.Request, kind topology.Kind) (cmd relations.Command, from sender, _ *Problem) {
	target, p := pathID(r, "id")
	if p != nil {
		return cmd, from, p
	}
	key, p := idempotencyKey(r)
	if p != nil {
		return cmd, from, p
	}
	text, p := readBody(w, r)
	if p != nil {
		return cmd, from, p
	}
	body, p := decodeCommand(text, kind)
	return relations.Command{
		OperationID: key,
		Relation:    topology.Relation{Kind: kind, User: IdentityOf(r.Context()).User, Target: target},
		Desired:     body.desired,
		BaseVersion: body.baseVersion,
	}, sender{body.device, body.sequence}, p
}

func (c commands) operation(w http.ResponseWriter, r *http.Request) *Problem {
	id := r.PathValue("operationId")
	if bad := badKey(id); bad != "" {
		return invalid("path.operationId", bad)
	}
	op, err := c.store.Operation(r.Context(), IdentityOf(r.Context()).User, id)
	if err != nil {
		return c.api.storeProblem(r.Context(), err, "the operation cannot be looked up now: try again")
	}
	writeJSON(w, OperationAnswer{
		CommandAnswer: commandAnswer(id, relations.Result{Operation: op.Result, Current: op.Current, Replayed: true}),
		Kind:          op.Command.Relation.Kind.String(),
		TargetID:      op.Command.Relation.Target,
		DesiredState:  stateName(op.Command.Desired),
	})
	return nil
}

func commandAnswer(operationID string, res relations.Result) CommandAnswer {
	current := relationState(res.Current)
	return CommandAnswer{
		RelationState: current, OperationID: operationID, CountConsistency: "EVENTUAL", Replayed: res.Replayed,
		OperationResult: OperationResult{
			Outcome: res.Operation.Outcome.String(), State: stateName(res.Operation.State),
			RelationVersion: res.Operation.Version, DecidedAt: res.Operation.DecidedAt.UTC(),
		},
		CurrentRelation: current,
	}
}

func relationState(f relations.Fact) RelationState {
	return RelationState{State: stateName(f.State), RelationVersion: f.Version, StateChangedAt: timeOrNull(f.StateChangedAt)}
}

func stateName(s topology.State) StateName { return StateName(s.String()) }

// timeOrNull is t in UTC, nil for no time.
func timeOrNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func stale(res relations.Result) *Problem {
	p := newProblem(kindStaleBaseVersion, "body.baseVersion is not the relation's version: take currentRelation, and send a new command with a new Idempotency-Key if the user still wants it")
	p.Errors = []FieldError{{Location: "body.baseVersion", Message: "is not the relation's version"}}
	p.CurrentRelation = ptr(relationState(res.Current))
	return p
}

func expired() *Problem {
	return newProblem(kindOperationExpired, "the id tells a time for which operations are no longer kept, so it cannot be told whether this one was decided; it is not decided now: look at the relation, and make a new id if the user still wants it")
}

// storeProblem is the one place that answers a store's errors. What is not a
// refusal of the command is an outage, whatever it is: no error of a store is
// the client's fault, and none is worth a 500, since coming again is right.
func (a *API) storeProblem(ctx context.Context, err error, detail string) *Problem {
	switch {
	case errors.Is(err, relations.ErrOperationConflict):
		p := newProblem(kindKeyReused, "header.Idempotency-Key was first used for another command: a key belongs to one user, target and body; make a new one")
		p.Errors = []FieldError{{Location: "header.Idempotency-Key", Message: "was first used for another command"}}
		return p
	case errors.Is(err, relations.ErrOperationExpired):
		return expired()
	case errors.Is(err, relations.ErrOperationNotFound):
		return newProblem(kindOperationUnknown, "no operation of this user has this id: it was not committed, or is no longer kept")
	case errors.Is(err, relations.ErrInvalid):
		return newProblem(kindInvalidRequest, err.Error())
	}
	if !errors.Is(ctx.Err(), context.Canceled) {
		a.quiet.warn(ctx, "the relation store did not answer", err)
	}
	return unavailable(kindStoreUnavailable, detail)
}
