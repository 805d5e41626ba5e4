package api

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
)

// router finds operations by path and method; it is a huma.Adapter. Unlike
// http.ServeMux it takes every id: ServeMux redirects paths with empty or dot
// segments, has no match for an id of one slash, and answers in plain text.
// A segment of the path is percent-decoded by itself and then is the literal
// or the id that the pattern has there, whatever it is.
type router struct {
	routes []route
}

type route struct {
	method   string
	pattern  string   // as metrics name it: PUT /v1/videos/{id}/like-relation
	segments []string // a parameter stands in braces
	handle   http.HandlerFunc
}

func (rt *router) add(method, path string, h http.HandlerFunc) {
	rt.routes = append(rt.routes, route{
		method: method, pattern: method + " " + path, segments: strings.Split(path[1:], "/"), handle: h,
	})
}

// Handle adds an operation of huma's.
func (rt *router) Handle(op *huma.Operation, h func(huma.Context)) {
	rt.add(op.Method, op.Path, func(w http.ResponseWriter, r *http.Request) { h(humago.NewContext(op, r, w)) })
}

// ServeHTTP answers with the operation that r names, or the problem that it
// names none. It sets r's pattern and path values.
func (rt *router) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, encoded := r.URL.Path, false
	if r.URL.RawPath != "" {
		path, encoded = r.URL.EscapedPath(), true
	}
	var allowed []string
	for i := range rt.routes {
		route := &rt.routes[i]
		if !route.match(path, encoded, nil) {
			continue
		}
		if r.Method == route.method || r.Method == http.MethodHead && route.method == http.MethodGet {
			route.match(path, encoded, r.SetPathValue)
			r.Pattern = route.pattern
			route.handle(w, r)
			return
		}
		allowed = append(allowed, route.method)
		if route.method == http.MethodGet {
			allowed = append(allowed, http.MethodHead)
		}
	}
	if allowed == nil {
		newProblem(kindNotFound, "this path names nothing here: see /openapi.json").write(w)
		return
	}
	slices.Sort(allowed)
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	newProblem(kindMethodNotAllowed, "this path has "+strings.Join(allowed, ", ")).write(w)
}

// match compares path with the pattern, segment by segment, and gives each
// parameter to set, if there is a set.
func (rt *route) match(path string, encoded bool, set func(name, value string)) bool {
	for i, want := range rt.segments {
		if path == "" || path[0] != '/' {
			return false
		}
		path = path[1:]
		end := len(path)
		if i < len(rt.segments)-1 {
			if end = strings.IndexByte(path, '/'); end < 0 {
				return false
			}
		} else if strings.IndexByte(path, '/') >= 0 {
			return false
		}
		got := path[:end]
		path = path[end:]
		if encoded {
			decoded, err := url.PathUnescape(got)
			if err != nil {
				return false
			}
			got = decoded
		}
		switch {
		case want[0] != '{':
			if got != want {
				return false
			}
		case set != nil:
			set(want[1:len(want)-1], got)
		}
	}
	return true
}
