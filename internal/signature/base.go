package signature

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/dunglas/httpsfv"
)

// base is what is signed (RFC 9421, 2.5): a line for each component that input
// covers, then input itself, written as RFC 9651 writes it.
func base(r *http.Request, input httpsfv.InnerList) (string, error) {
	var b strings.Builder
	seen := map[string]bool{}
	for _, item := range input.Items {
		name, ok := item.Value.(string)
		if !ok {
			return "", refuse(Malformed, "header.Signature-Input", "names a component that is not a string")
		}
		if len(item.Params.Names()) > 0 {
			return "", refuse(Malformed, "header.Signature-Input", "gives parameters to a component: none are read here")
		}
		if seen[name] {
			return "", refuse(Malformed, "header.Signature-Input", "names a component twice")
		}
		seen[name] = true
		value, err := component(r, name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "%q: %s\n", name, value) // component took no name that %q would escape
	}
	params, err := httpsfv.Marshal(input)
	if err != nil {
		return "", refuse(Malformed, "header.Signature-Input", "has a parameter that cannot be written again")
	}
	b.WriteString(`"@signature-params": `)
	b.WriteString(params)
	return b.String(), nil
}

// component is the value of a part of r (RFC 9421, 2.1 and 2.2).
func component(r *http.Request, name string) (string, error) {
	switch name {
	case "@method":
		return r.Method, nil
	case "@authority":
		return authority(r), nil
	case "@path":
		if path := r.URL.EscapedPath(); path != "" {
			return path, nil
		}
		return "/", nil
	case "@query":
		return "?" + r.URL.RawQuery, nil
	}
	if !isFieldName(name) {
		return "", refuse(Malformed, "header.Signature-Input", "names a component that is none here: a field in lower case, @method, @authority, @path or @query")
	}
	values := r.Header.Values(name)
	if len(values) == 0 {
		return "", refuse(Malformed, "header.Signature-Input", "covers "+name+", which the request does not have")
	}
	trimmed := make([]string, len(values))
	for i, v := range values {
		trimmed[i] = strings.Trim(v, " \t")
	}
	return strings.Join(trimmed, ", "), nil
}

// authority is without a port that is a scheme's default, whatever the scheme
// is: behind a proxy that ends TLS it is not known.
func authority(r *http.Request) string {
	host := r.Host
	if host == "" {
		host = r.URL.Host
	}
	host = strings.ToLower(host)
	if without, ok := strings.CutSuffix(host, ":443"); ok {
		return without
	}
	return strings.TrimSuffix(host, ":80")
}

// isFieldName tells whether name is a field's, in lower case (RFC 9110, 5.1).
func isFieldName(name string) bool {
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return name != ""
}
