package topology

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// The AsyncAPI 3.0 document: a channel per stream, with Kafka's bindings; an
// operation per stream that a group, the emitter or a view reads or writes.
// What stands in Streams, Groups, Reading and records.proto is all it says.
//
// docs/asyncapi.json is that of the default settings; go test ./docs compares
// and validates it.

const (
	asyncAPIVersion     = "3.0.0"
	kafkaBindingVersion = "0.5.0"
	protobufFormat      = "application/vnd.google.protobuf;version=3"
	protobufContent     = "application/protobuf"
)

// cdcSchemas are the JSON schemas of stream cdc; a test holds them to the
// types of event.go.
//
//go:embed asyncapi_cdc.json
var cdcSchemas []byte

// envelopeSchema is the schema in cdcSchemas of a record's value.
const envelopeSchema = "Envelope"

type object = map[string]any

func ref(path ...string) object { return object{"$ref": "#/" + strings.Join(path, "/")} }

type asyncDocument struct {
	AsyncAPI   string                    `json:"asyncapi"`
	Info       object                    `json:"info"`
	Servers    object                    `json:"servers"`
	Channels   map[string]asyncChannel   `json:"channels"`
	Operations map[string]asyncOperation `json:"operations"`
	Components object                    `json:"components"`
}

type asyncChannel struct {
	Address     string `json:"address"`
	Title       string `json:"title"`
	Description string `json:"description"`
	Messages    object `json:"messages"`
	Bindings    object `json:"bindings"`
}

type asyncOperation struct {
	Action   string   `json:"action"` // send or receive
	Summary  string   `json:"summary"`
	Channel  object   `json:"channel"`
	Messages []object `json:"messages"`
	Bindings object   `json:"bindings,omitempty"`
}

func (t *Topology) printAsyncAPI(w io.Writer) error {
	d, err := t.asyncAPI()
	if err != nil {
		return fmt.Errorf("printing topology as AsyncAPI: %w", err)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(d)
}

func (t *Topology) asyncAPI() (*asyncDocument, error) {
	schemas := object{}
	if err := json.Unmarshal(cdcSchemas, &schemas); err != nil {
		return nil, fmt.Errorf("reading the schemas of cdc: %w", err)
	}
	d := &asyncDocument{
		AsyncAPI: asyncAPIVersion,
		Info: object{
			"title": "tidemark", "version": "1",
			"description": "The streams and tables of tidemark, each a Kafka topic: likes, favorites and follows as committed facts, and the counts built from them.\n\n" +
				"Readers outside want `facts` (every transition) or `display-table` (counts as shown); services that own accounts, videos and blocks write `privacy-events`; the others are between tidemark's own parts. Every stream may repeat records: read each as its description says, and see docs/streams.md.",
		},
		Servers: object{"kafka": object{
			"host": "{brokers}", "protocol": "kafka",
			"variables": object{"brokers": object{"description": "setting kafka.brokers", "examples": []string{"127.0.0.1:9092"}}},
		}},
		Channels:   map[string]asyncChannel{},
		Operations: map[string]asyncOperation{},
		Components: object{"schemas": schemas},
	}
	for _, s := range t.Streams {
		message, err := s.asyncMessage(schemas)
		if err != nil {
			return nil, fmt.Errorf("stream %s: %w", s.Name, err)
		}
		bindings, err := t.channelBindings(s)
		if err != nil {
			return nil, fmt.Errorf("stream %s: %w", s.Name, err)
		}
		d.Channels[s.Name] = asyncChannel{
			Address: s.Topic, Title: s.Name, Description: s.Guide(), Bindings: bindings,
			Messages: object{s.asyncMessageName(): message},
		}
	}
	t.asyncOperations(d.Operations)
	return d, nil
}

// asyncMessageName is the last part of the value's schema.
func (s Stream) asyncMessageName() string {
	if !s.Protobuf() {
		return envelopeSchema
	}
	return s.Value[strings.LastIndexByte(s.Value, '.')+1:]
}

// asyncMessage describes a stream's records, and adds the schema of their
// value to schemas.
func (s Stream) asyncMessage(schemas object) (object, error) {
	name := s.asyncMessageName()
	m := object{
		"name": name, "title": s.Value, "contentType": "application/json",
		"payload":  ref("components", "schemas", name),
		"bindings": object{"kafka": object{"key": s.asyncKey(), "bindingVersion": kafkaBindingVersion}},
	}
	if s.Protobuf() {
		source, err := protoSource(s.Value)
		if err != nil {
			return nil, err
		}
		schemas[name] = object{"schemaFormat": protobufFormat, "schema": source}
		m["contentType"] = protobufContent
	}
	headers := object{}
	for _, h := range s.Reading().Headers {
		headers[h.Name] = object{"type": "string", "description": h.Meaning}
	}
	if len(headers) > 0 {
		m["headers"] = object{"type": "object", "properties": headers}
	}
	return m, nil
}

// asyncKey is the schema of a stream's keys.
func (s Stream) asyncKey() object {
	var of, patterns, examples []string
	for _, k := range s.Reading().Keys {
		of = append(of, k.Of)
		examples = append(examples, k.Example)
		if k.Pattern != "" {
			patterns = append(patterns, k.Pattern)
		}
	}
	key := object{"type": "string", "description": s.Key + ": " + strings.Join(of, "; "), "examples": examples}
	if len(patterns) > 0 {
		key["pattern"] = "^(?:" + strings.Join(patterns, "|") + ")$"
	}
	return key
}

// channelBindings are a topic's partitions and settings; Kafka's binding has
// numbers as numbers and the cleanup policy as a list.
func (t *Topology) channelBindings(s Stream) (object, error) {
	settings := object{}
	for name, value := range s.Settings {
		if name == "cleanup.policy" {
			settings[name] = strings.Split(value, ",")
			continue
		}
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("setting %s is %q, not a number", name, value)
		}
		settings[name] = n
	}
	return object{"kafka": object{
		"topic": s.Topic, "partitions": s.Partitions, "replicas": t.Config.ReplicationFactor,
		"topicConfiguration": settings, "bindingVersion": kafkaBindingVersion,
	}}, nil
}

// asyncOperations are what tidemark itself does with the streams; a reader
// outside is no part of it.
func (t *Topology) asyncOperations(all map[string]asyncOperation) {
	add := func(who, action, stream, groupID string) {
		s := t.Stream(stream)
		verb := map[string]string{"send": "sends", "receive": "receives"}[action]
		o := asyncOperation{
			Action: action, Summary: who + " " + verb + " " + stream,
			Channel:  ref("channels", stream),
			Messages: []object{ref("channels", stream, "messages", s.asyncMessageName())},
		}
		if groupID != "" {
			o.Bindings = object{"kafka": object{"groupId": object{"type": "string", "const": groupID}, "bindingVersion": kafkaBindingVersion}}
		}
		all[who+"-"+verb+"-"+stream] = o
	}
	add("emitter", "send", CDC, "")
	for _, g := range t.Groups {
		for _, in := range g.Inputs {
			add(g.Name, "receive", in, g.ID)
		}
		for _, out := range g.Outputs {
			add(g.Name, "send", out, "")
		}
		if g.Table != "" {
			add(g.Name, "send", g.Table, "")
			add(g.Name, "receive", g.Table, "") // to restore its state, without a group
		}
	}
	add("view", "receive", DisplayTable, "")
}
