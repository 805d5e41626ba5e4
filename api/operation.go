package api

import (
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tidemark/tidemark/topology"
)

const bearerScheme = "bearer"

// operation is one method of one path: what the document says of it and what
// answers it.
type operation struct {
	method, path, id, tag string
	summary, description  string
	params                []*huma.Param
	body, result          reflect.Type // body nil: none
	media                 string       // of an answer that is no result but a file
	problems              []problemKind
	// class is that of signature.Classes, of an operation that changes something.
	class string
	// limitsItself says that handle calls API.limit and admits itself, since only it
	// knows the device and the shard.
	limitsItself bool
	// handle reads the query, if params has parameters in it, and answers, or gives the problem to answer with.
	handle func(w http.ResponseWriter, r *http.Request) *Problem
}

// commonProblems are those that any operation under /v1/ may answer.
var commonProblems = []problemKind{kindInvalidRequest, kindUnauthenticated, kindRateLimited, kindOverloaded, kindIdentityUnverified, kindInternal}

// bodyProblems are those of every operation with a body.
var bodyProblems = []problemKind{kindRequestTimeout, kindBodyTooLarge, kindUnsupportedMedia}

// add routes op and puts it into the OpenAPI document.
func (a *API) add(op operation) {
	schemas := a.huma.OpenAPI().Components.Schemas
	h := &huma.Operation{
		Method: op.method, Path: op.path, OperationID: op.id, Tags: []string{op.tag},
		Summary: op.summary, Description: op.description, Parameters: op.params,
		Security:  []map[string][]string{{bearerScheme: {}}},
		Responses: map[string]*huma.Response{},
	}
	if op.media != "" {
		h.Responses["200"] = answer(op.media, "OK", &huma.Schema{Type: huma.TypeString, Format: "binary"})
	} else {
		h.Responses["200"] = answer("application/json", "OK", schemas.Schema(op.result, true, ""))
	}
	problems := append(append([]problemKind(nil), commonProblems...), op.problems...)
	if op.body != nil {
		h.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
			"application/json": {Schema: schemas.Schema(op.body, true, "")},
		}}
		problems = append(problems, bodyProblems...)
	}
	if op.class != "" {
		h.Parameters = append(h.Parameters, signatureParams()...)
		problems = append(problems, kindSignatureInvalid)
	}
	documentProblems(h, problems, schemas.Schema(reflect.TypeFor[Problem](), true, ""))
	a.huma.OpenAPI().AddOperation(h)
	inQuery := slices.ContainsFunc(op.params, func(p *huma.Param) bool { return p.In == "query" })
	a.router.add(op.method, op.path, func(w http.ResponseWriter, r *http.Request) {
		if p := a.answer(w, r, op, inQuery); p != nil {
			p.write(w)
		}
	})
}

// answer answers, or gives the problem to answer with. Signatures come before
// limits: what is not signed costs nobody a token.
func (a *API) answer(w http.ResponseWriter, r *http.Request, op operation, inQuery bool) *Problem {
	if r.URL.RawQuery != "" && !inQuery {
		return badQuery(r.URL.RawQuery)
	}
	if p := a.checkSignature(w, r, op.class); p != nil {
		return p
	}
	if op.limitsItself {
		return op.handle(w, r)
	}
	return a.query(w, r, op.handle)
}

func documentProblems(h *huma.Operation, problems []problemKind, schema *huma.Schema) {
	byStatus := map[int][]string{}
	for _, k := range problems {
		byStatus[k.status] = append(byStatus[k.status], k.uri()+" ("+k.title+")")
	}
	for status, types := range byStatus {
		h.Responses[strconv.Itoa(status)] = answer("application/problem+json", strings.Join(types, "; "), schema)
	}
}

func answer(mediaType, description string, schema *huma.Schema) *huma.Response {
	return &huma.Response{Description: description, Content: map[string]*huma.MediaType{mediaType: {Schema: schema}}}
}

func ptr[T any](v T) *T { return &v }

// idParam documents an id in the path.
func idParam(name, description string) *huma.Param {
	return &huma.Param{Name: name, In: "path", Required: true, Schema: idSchema(),
		Description: description + fmt.Sprintf(": 1 to %d bytes of UTF-8 without control characters, percent-encoded", topology.MaxIDBytes)}
}

func idSchema() *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, MinLength: ptr(1), MaxLength: ptr(topology.MaxIDBytes)}
}

func keySchema() *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, MinLength: ptr(1), MaxLength: ptr(MaxKeyBytes), Pattern: `^[\x20-\x7e]+$`}
}

func enumSchema[T any](values []T, text func(T) string) *huma.Schema {
	s := &huma.Schema{Type: huma.TypeString}
	for _, v := range values {
		s.Enum = append(s.Enum, text(v))
	}
	return s
}
