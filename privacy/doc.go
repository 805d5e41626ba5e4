// Package privacy decides who may see which relations, and who may begin one:
// whose lists of likes, favorites, followed users and followers are shown to
// whom, who may see the likers of a video, which users and videos a viewer may
// be shown in a list, which targets refuse new relations, and whose public
// counts are withdrawn. docs/privacy.md has the rules in words.
//
//	account, video and block events ──Apply──▶ privacy_* tables of the control database
//	(processors/privacyfeed, api)                │                       │ NOTIFY, after the commit
//	      UserList, VideoList, Users, Videos ◀───┤                       ▼
//	      at each read of a list                 └──▶ Snapshot: what a process remembers, and forgets
//	                                                  MayBegin, at each command that begins a relation (I7)
//	                                                  Withdrawn, at each read of a count (J3)
//
// Whether a relation that was committed is stored, counted or indexed does not
// depend on any of this; what a list or a count shows does, at the moment when
// it is read. So a user who hides a list, blocks someone or closes the account is
// not shown from the next read on, whatever is still on its way through the
// streams, and a like that comes late, after its video was deleted, changes no
// public number.
//
// Events carry a version of their subject, rising by any amount. What is not
// higher than the version that is stored changes nothing, so events may come
// twice and in any order (as I3 for relations). Rows stay for ever.
//
// Metrics of a Snapshot:
//
//	tidemark_visibility_checks_total{verdict}   commands that would begin a relation: allowed, no_target, no_account
//	tidemark_visibility_lookups_total{source}   subjects asked for, answered from memory, database, last (an outage) or none
//	tidemark_visibility_listening               1 while changes are heard of, so that memory is used
package privacy
