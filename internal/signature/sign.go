package signature

import (
	"net/http"
	"time"

	"github.com/dunglas/httpsfv"
)

// label of the signatures that Sign makes. Any would do: the tag tells.
const label = "tidemark"

// covered are the components of every signature; a request that has an
// Idempotency-Key has keyed beside, and one that has a query that.
var covered = []string{"@method", "@path", "content-digest", "authorization"}

const keyed = "idempotency-key"

// Sign signs r, whose body is body and whose other headers are set, as of now.
// It sets Content-Digest, Signature-Input and Signature. Each attempt is signed
// anew, since its time is signed.
func Sign(r *http.Request, body []byte, key Key, now time.Time) error {
	if err := key.Check(); err != nil {
		return err
	}
	r.Header.Set("Content-Digest", digest(body))
	input := httpsfv.InnerList{Params: httpsfv.NewParams()}
	for _, name := range mustCover(r) {
		input.Items = append(input.Items, httpsfv.NewItem(name))
	}
	input.Params.Add("created", now.Unix())
	input.Params.Add("keyid", key.ID)
	input.Params.Add("alg", Algorithm)
	input.Params.Add("tag", Tag)
	text, err := base(r, input)
	if err != nil {
		return err
	}
	inputs, signatures := httpsfv.NewDictionary(), httpsfv.NewDictionary()
	inputs.Add(label, input)
	signatures.Add(label, httpsfv.NewItem(mac(key.Secret, text)))
	return setDictionaries(r.Header, map[string]*httpsfv.Dictionary{"Signature-Input": inputs, "Signature": signatures})
}

func setDictionaries(h http.Header, fields map[string]*httpsfv.Dictionary) error {
	for field, d := range fields {
		text, err := httpsfv.Marshal(d)
		if err != nil {
			return err
		}
		h.Set(field, text)
	}
	return nil
}
