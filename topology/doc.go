// Package topology is tidemark's map: streams, tables, groups, keys, hashing
// contracts and record schemas, as data. Every other package meets here and
// nowhere else; `tidemark topology print` shows what stands in New.
//
//	relations ─▶ cdc ─▶ intake ─▶ bucket-changes ─▶ projection ─▶ partial-counts ─▶ display ─▶ views
//	                      └─▶ facts, quarantine
package topology
