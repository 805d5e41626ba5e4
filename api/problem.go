package api

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

const problemPrefix = "urn:tidemark:problem:"

// problemKind is a stable problem type: its URN never changes its meaning.
type problemKind struct {
	name   string
	status int
	title  string
}

// The problem types. docs/api.md explains each; a test keeps it complete.
var (
	kindInvalidRequest     = problemKind{"invalid-request", http.StatusBadRequest, "The request is not valid"}
	kindUnauthenticated    = problemKind{"unauthenticated", http.StatusUnauthorized, "A valid bearer token is needed"}
	kindSignatureInvalid   = problemKind{"signature-invalid", http.StatusUnauthorized, "A valid signature is needed"}
	kindListWithheld       = problemKind{"list-withheld", http.StatusForbidden, "The list is not shown to you"}
	kindRoleMissing        = problemKind{"role-missing", http.StatusForbidden, "A role is needed"}
	kindAccountInactive    = problemKind{"account-inactive", http.StatusForbidden, "Your account is closed or banned"}
	kindRiskRefused        = problemKind{"risk-refused", http.StatusForbidden, "This is not possible for you"}
	kindNotFound           = problemKind{"not-found", http.StatusNotFound, "There is no such resource"}
	kindTargetUnknown      = problemKind{"target-unknown", http.StatusNotFound, "There is no such target for you"}
	kindOperationUnknown   = problemKind{"operation-unknown", http.StatusNotFound, "The operation is not known"}
	kindExportUnknown      = problemKind{"export-unknown", http.StatusNotFound, "The export is not known"}
	kindOperationExpired   = problemKind{"operation-expired", http.StatusGone, "The operation is older than operations are kept"}
	kindMethodNotAllowed   = problemKind{"method-not-allowed", http.StatusMethodNotAllowed, "The resource does not have this method"}
	kindRequestTimeout     = problemKind{"request-timeout", http.StatusRequestTimeout, "The request body came too slowly"}
	kindStaleBaseVersion   = problemKind{"stale-base-version", http.StatusConflict, "The relation has changed since the base version"}
	kindExportNotFinished  = problemKind{"export-not-finished", http.StatusConflict, "The export has no files yet"}
	kindPageTokenExpired   = problemKind{"page-token-expired", http.StatusGone, "The page token is no longer good"}
	kindListGenerationGone = problemKind{"list-generation-gone", http.StatusGone, "The list has been built anew since the page token was made"}
	kindBodyTooLarge       = problemKind{"body-too-large", http.StatusRequestEntityTooLarge, "The request body is too large"}
	kindUnsupportedMedia   = problemKind{"unsupported-media-type", http.StatusUnsupportedMediaType, "The request body must be JSON"}
	kindKeyReused          = problemKind{"idempotency-key-reused", http.StatusUnprocessableEntity, "The Idempotency-Key belongs to another command"}
	kindRateLimited        = problemKind{"rate-limited", http.StatusTooManyRequests, "Too many requests"}
	kindTooManyExports     = problemKind{"too-many-exports", http.StatusTooManyRequests, "Too many exports wait or run"}
	kindInternal           = problemKind{"internal", http.StatusInternalServerError, "The server made a mistake"}
	kindOverloaded         = problemKind{"overloaded", http.StatusServiceUnavailable, "Too much is asked at a time"}
	kindStoreUnavailable   = problemKind{"store-unavailable", http.StatusServiceUnavailable, "Relations cannot be reached now"}
	kindCountsUnavailable  = problemKind{"counts-unavailable", http.StatusServiceUnavailable, "Counts are not ready yet"}
	kindListsUnavailable   = problemKind{"lists-unavailable", http.StatusServiceUnavailable, "The list is not served yet"}
	kindPrivacyUnavailable = problemKind{"privacy-unavailable", http.StatusServiceUnavailable, "What may be shown cannot be decided now"}
	kindRiskUnavailable    = problemKind{"risk-unavailable", http.StatusServiceUnavailable, "What may be done cannot be decided now"}
	kindExportsUnavailable = problemKind{"exports-unavailable", http.StatusServiceUnavailable, "Exports cannot be reached now"}
	kindIdentityUnverified = problemKind{"identity-unavailable", http.StatusServiceUnavailable, "Tokens cannot be verified now"}
)

// problemKinds are all of them.
var problemKinds = []problemKind{
	kindInvalidRequest, kindUnauthenticated, kindSignatureInvalid, kindListWithheld, kindNotFound, kindOperationUnknown, kindOperationExpired, kindMethodNotAllowed,
	kindRequestTimeout, kindStaleBaseVersion, kindPageTokenExpired, kindListGenerationGone, kindBodyTooLarge,
	kindUnsupportedMedia, kindKeyReused, kindInternal, kindStoreUnavailable, kindCountsUnavailable,
	kindListsUnavailable, kindPrivacyUnavailable, kindIdentityUnverified,
	kindAccountInactive, kindTargetUnknown, kindRoleMissing, kindExportUnknown, kindExportNotFinished, kindRateLimited, kindOverloaded, kindTooManyExports, kindExportsUnavailable, kindRiskRefused, kindRiskUnavailable,
}

func (k problemKind) uri() string { return problemPrefix + k.name }

// FieldError names one field at fault.
type FieldError struct {
	Location string `json:"location" doc:"Where: body.desiredState, body.videoIds[3], path.id, header.Idempotency-Key, query.name" example:"body.desiredState"`
	Message  string `json:"message" doc:"What is wrong with it; reads after the location" example:"is missing"`
}

// Problem is every answer that is not a success: RFC 9457.
type Problem struct {
	Type            string         `json:"type" format:"uri" doc:"Stable name of the problem type" example:"urn:tidemark:problem:invalid-request"`
	Title           string         `json:"title" doc:"The problem type in words; the same for every occurrence"`
	Status          int            `json:"status" doc:"The HTTP status" example:"400"`
	Detail          string         `json:"detail,omitempty" doc:"What happened this time and what to do"`
	Errors          []FieldError   `json:"errors,omitempty" nullable:"false" doc:"The fields at fault"`
	CurrentRelation *RelationState `json:"currentRelation,omitempty" doc:"With stale-base-version, and operation-expired of a command: the relation as it is"`

	retryAfter time.Duration
	challenge  string // WWW-Authenticate
	// acceptSignature is Accept-Signature, of which there is a need.
	acceptSignature string
}

func newProblem(k problemKind, detail string) *Problem {
	return &Problem{Type: k.uri(), Title: k.title, Status: k.status, Detail: detail}
}

// invalid refuses one field; message reads after the field's name.
func invalid(location, message string) *Problem {
	p := newProblem(kindInvalidRequest, location+" "+message)
	p.Errors = []FieldError{{Location: location, Message: message}}
	return p
}

// unavailable asks the client to come again after a while.
func unavailable(k problemKind, detail string) *Problem {
	p := newProblem(k, detail)
	p.retryAfter = time.Second
	return p
}

// Error makes a Problem an error.
func (p *Problem) Error() string { return p.Title + ": " + p.Detail }

func (p *Problem) write(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	if p.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(max(1, int(p.retryAfter.Round(time.Second)/time.Second))))
	}
	if p.challenge != "" {
		h.Set("WWW-Authenticate", p.challenge)
	}
	if p.acceptSignature != "" {
		h.Set("Accept-Signature", p.acceptSignature)
	}
	w.WriteHeader(p.Status)
	encodeJSON(w, p)
}

func writeJSON(w http.ResponseWriter, v any) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	encodeJSON(w, v)
}

// encodeJSON writes v. The only error left at this point is a client that has
// gone, for whom there is nothing to do.
func encodeJSON(w http.ResponseWriter, v any) {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
}
