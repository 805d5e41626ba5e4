package topology

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// A payload's protobuf source declares every field of the message and of what
// it needs, and its root is the only message that no other uses.
func TestProtoSourceIsWhole(t *testing.T) {
	topo, _ := New(DefaultConfig())
	for _, s := range topo.Streams {
		if !s.Protobuf() {
			continue
		}
		source, err := protoSource(s.Value)
		if err != nil {
			t.Fatal(err)
		}
		root := tidemarkv1.File_tidemark_v1_records_proto.Messages().ByName(protoreflect.FullName(s.Value).Name())
		needed := map[string]bool{}
		need(root, needed)
		var declared []string
		for _, d := range declarations(source) {
			declared = append(declared, d.name)
			kind, name, _ := strings.Cut(d.name, " ")
			if !needed[d.name] {
				t.Errorf("%s: its source declares %s, which it does not need", s.Value, d.name)
			}
			if used := strings.Count(source, " "+name+" ") + strings.Count(source, "repeated "+name+" "); d.name != "message "+string(root.Name()) && used < 2 {
				t.Errorf("%s: %s is declared and not used: a second root", s.Value, name)
			}
			for _, line := range describe(root.ParentFile()) {
				words := strings.Fields(line)
				if words[0] != name || words[2] == "reserved" {
					continue
				}
				field := words[2] + " = " + words[1] + ";"
				if !strings.Contains(d.text, " "+field) {
					t.Errorf("%s: its source of %s %s lacks %q", s.Value, kind, name, field)
				}
			}
		}
		if len(declared) != len(needed) {
			t.Errorf("%s: its source declares %v, it needs %v", s.Value, declared, needed)
		}
	}
}

// The schemas of cdc have the fields of the types in event.go, all of them and
// no others, and their closed lists are the code's.
func TestCDCSchemasAreTheTypes(t *testing.T) {
	var schemas map[string]schema
	if err := json.Unmarshal(cdcSchemas, &schemas); err != nil {
		t.Fatal(err)
	}
	types := map[string]reflect.Type{
		"Envelope": reflect.TypeFor[Envelope](), "Event": reflect.TypeFor[Event](),
		"Seal": reflect.TypeFor[Seal](), "SealProof": reflect.TypeFor[SealProof](),
	}
	for name := range schemas {
		if types[name] == nil {
			t.Errorf("schema %s is of no type", name)
		}
	}
	for name, typ := range types {
		sameFields(t, name, schemas[name], typ)
	}
	event, row := schemas["Event"].Properties, schemas["Envelope"].Properties["after"].Properties
	for what, pair := range map[string][2][]string{
		"kinds":           {event["kind"].Enum, slices.DeleteFunc(slices.Clone(kindNames[:]), empty)},
		"states":          {event["absoluteState"].Enum, slices.DeleteFunc(slices.Clone(stateNames[:]), empty)},
		"hiders":          {event["hidden"].Enum, slices.DeleteFunc(slices.Clone(hiddenNames[:]), empty)},
		"aggregate types": {row["aggregatetype"].Enum, []string{AggregateRelation, AggregateSeal, AggregateProof}},
		"event types":     {row["type"].Enum, []string{TypeRelationChanged, TypeSealed, TypeSealProven}},
	} {
		if !slices.Equal(pair[0], pair[1]) {
			t.Errorf("%s of the schema are %v, the code's %v", what, pair[0], pair[1])
		}
	}
}

type schema struct {
	Properties map[string]schema `json:"properties"`
	Enum       []string          `json:"enum"`
}

func empty(s string) bool { return s == "" }

func sameFields(t *testing.T, at string, s schema, typ reflect.Type) {
	t.Helper()
	var want []string
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		want = append(want, name)
		under := f.Type
		if under.Kind() == reflect.Pointer {
			under = under.Elem()
		}
		// before is the row's type too, but always null.
		if inside := s.Properties[name]; under.Kind() == reflect.Struct && len(inside.Properties) > 0 {
			sameFields(t, at+"."+name, inside, under)
		}
	}
	var got []string
	for name := range s.Properties {
		got = append(got, name)
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		t.Errorf("schema %s has %v, the type %v", at, got, want)
	}
}

// Every stream is a channel with its topic, partitions and settings; every
// group's input, output and table is an operation.
func TestAsyncAPIHasEverything(t *testing.T) {
	c := DefaultConfig()
	c.Prefix, c.ReplicationFactor = "eu.likes", 3
	topo, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	d, err := topo.asyncAPI()
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Channels) != len(topo.Streams) {
		t.Errorf("%d channels for %d streams", len(d.Channels), len(topo.Streams))
	}
	for _, s := range topo.Streams {
		channel := d.Channels[s.Name]
		kafka, _ := channel.Bindings["kafka"].(object)
		if channel.Address != s.Topic || kafka["partitions"] != s.Partitions || kafka["replicas"] != 3 {
			t.Errorf("%s: channel %+v", s.Name, channel)
		}
		settings, _ := kafka["topicConfiguration"].(object)
		if len(settings) != len(s.Settings) {
			t.Errorf("%s: settings %v of %v", s.Name, settings, s.Settings)
		}
	}
	for _, g := range topo.Groups {
		for _, in := range g.Inputs {
			if o := d.Operations[g.Name+"-receives-"+in]; o.Action != "receive" || o.Bindings == nil {
				t.Errorf("%s reads %s: operation %+v", g.Name, in, o)
			}
		}
		for _, out := range g.Outputs {
			if o := d.Operations[g.Name+"-sends-"+out]; o.Action != "send" {
				t.Errorf("%s writes %s: operation %+v", g.Name, out, o)
			}
		}
	}
}
