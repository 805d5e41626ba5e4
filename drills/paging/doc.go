// Package paging reads lists over the API while a drill harms what answers
// them, and finds what no reader may ever be told.
//
// A Reader goes through a list page by page, from its first page to the one
// without a nextPageToken. Some users stay in the list for as long as the drill
// runs; others come and go. A page may be late, or refused with 503 and
// Retry-After; then it is asked again, sooner than was advised, so that the
// moments in which answers go wrong are met. Everything else is a finding:
//
//	list-missing   a user who stays was not told in a whole reading, an empty list included
//	list-twice     a user who stays was told twice, or with another time than before
//	list-disorder  a page, or the users who stay in all pages, are not newest first
//	list-short     a page has less than was asked, and says that more follows
//	list-refused   neither a page nor 503 with Retry-After, or nothing within 10 s
//
// Order is demanded of the users who stay over all pages, of everybody within a
// page only: an entry that reaches its reverse shard late is still told, behind
// younger ones of other shards.
package paging
