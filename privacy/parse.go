package privacy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// ParseEvent reads an event from JSON: the fields of an Account, Video or Block
// and the field type, which is account, video or block. Every field is there
// and no other: one left out would silently mean false, and so more open than
// was meant.
func ParseEvent(b []byte) (Event, error) {
	var head struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return nil, fmt.Errorf("%w: it is not a JSON object with a type: %w", ErrInvalid, err)
	}
	var e Event
	var err error
	switch head.Type {
	case "account":
		var v struct {
			Type string `json:"type"`
			Account
		}
		err = parseWhole(b, &v)
		e = v.Account
	case "video":
		var v struct {
			Type string `json:"type"`
			Video
		}
		err = parseWhole(b, &v)
		e = v.Video
	case "block":
		var v struct {
			Type string `json:"type"`
			Block
		}
		err = parseWhole(b, &v)
		e = v.Block
	default:
		return nil, fmt.Errorf("%w: type is not one of account, video, block", ErrInvalid)
	}
	if err == nil {
		err = e.check()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return e, nil
}

// parseWhole reads an object with exactly the fields of into.
func parseWhole(b []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return err
	}
	have, err := fieldsOf(b)
	if err != nil {
		return err
	}
	whole, err := json.Marshal(into)
	if err != nil {
		return err
	}
	want, err := fieldsOf(whole)
	if err != nil {
		return err
	}
	for name := range want {
		if value, ok := have[name]; !ok || string(value) == "null" {
			return fmt.Errorf("%s is missing", name)
		}
	}
	if n, err := countFields(b); err != nil || n != len(want) { // one in another case too, or again
		return errors.Join(err, fmt.Errorf("it has %d fields, not %d", n, len(want)))
	}
	return nil
}

// countFields counts the fields of an object without inner ones, each time that
// one is there.
func countFields(object []byte) (n int, err error) {
	dec := json.NewDecoder(bytes.NewReader(object))
	for tokens := 0; ; tokens++ {
		switch _, err := dec.Token(); {
		case errors.Is(err, io.EOF):
			return (tokens - 2) / 2, nil
		case err != nil:
			return 0, err
		}
	}
}

func fieldsOf(object []byte) (map[string]json.RawMessage, error) {
	var fields map[string]json.RawMessage
	err := json.Unmarshal(object, &fields)
	return fields, err
}
