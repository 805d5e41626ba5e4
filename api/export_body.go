package api

import (
	"slices"
	"time"

	"github.com/tidemark/tidemark/exports"
	"github.com/tidemark/tidemark/topology"
)

// ExportBody is the body of an export, as the document shows it; decodeExport
// reads it.
type ExportBody struct {
	_        struct{} `additionalProperties:"false"`
	Kind     string   `json:"kind" enum:"like,favorite,follow"`
	TargetID string   `json:"targetId" doc:"The video's id; the user's for follow" minLength:"1" maxLength:"256"`
	Format   string   `json:"format,omitempty" enum:"parquet,csv,jsonl" default:"parquet"`
	Accounts string   `json:"accounts,omitempty" enum:"shown,all" default:"shown" doc:"Whose relations become rows: shown are accounts that are active and not private; all needs the role operator"`
	Purpose  string   `json:"purpose" minLength:"1" maxLength:"500" doc:"What the rows are wanted for, one line; it stands in the audit"`
}

// ExportAnswer is an export job.
type ExportAnswer struct {
	ExportID    string     `json:"exportId"`
	State       string     `json:"state" enum:"QUEUED,RUNNING,FINISHED,FAILED"`
	RequestedBy string     `json:"requestedBy"`
	Kind        string     `json:"kind"`
	TargetID    string     `json:"targetId"`
	Format      string     `json:"format"`
	Accounts    string     `json:"accounts"`
	Purpose     string     `json:"purpose"`
	RequestedAt time.Time  `json:"requestedAt"`
	EndedAt     *time.Time `json:"endedAt" doc:"null until it is FINISHED or FAILED"`
	Relations   int64      `json:"relations" doc:"Relations in the counted state at the barrier; so far, while it runs"`
	Rows        int64      `json:"rows" doc:"Those of accounts that the export shows"`
	Note        string     `json:"note" doc:"What it does, or why it failed"`
	Checksum    string     `json:"checksum" doc:"Of all rows, whatever the format; empty until it is FINISHED"`
	Files       []string   `json:"files" nullable:"false" doc:"manifest.json and the parts, newest relations first; empty until it is FINISHED"`
}

// decodeExport reads an ExportBody.
func decodeExport(s string) (spec exports.Spec, _ *Problem) {
	r := jsonReader{s: s}
	var seen fields
	spec.Format, spec.Accounts = exports.Parquet, exports.Shown
	p := r.object(func(name string) *Problem {
		var into *string
		switch name {
		case "kind":
			into = &spec.KindName
		case "targetId":
			into = &spec.Target
		case "format":
			into = (*string)(&spec.Format)
		case "accounts":
			into = (*string)(&spec.Accounts)
		case "purpose":
			into = &spec.Purpose
		default:
			return unknownField(name)
		}
		value, bad := r.str()
		if *into = value; bad == "" {
			bad = seen.add(name)
		}
		return invalidIf("body."+name, bad)
	})
	if p != nil {
		return spec, p
	}
	return spec, checkExport(&spec)
}

// checkExport names the field that is wrong.
func checkExport(spec *exports.Spec) *Problem {
	kind, err := topology.ParseKind(spec.KindName)
	switch spec.Kind = kind; {
	case spec.KindName == "":
		return invalid("body.kind", "is missing")
	case err != nil:
		return invalid("body.kind", "is not one of like, favorite, follow")
	case !slices.Contains(exports.Formats(), spec.Format):
		return invalid("body.format", "is not one of parquet, csv, jsonl")
	case !slices.Contains(exports.AccountChoices(), spec.Accounts):
		return invalid("body.accounts", "is not one of shown, all")
	case badID(spec.Target) != "":
		return invalid("body.targetId", badID(spec.Target))
	}
	if err := exports.CheckPurpose(spec.Purpose); err != nil {
		return invalid("body.purpose", "is refused: "+err.Error())
	}
	return nil
}
