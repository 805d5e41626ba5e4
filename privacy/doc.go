// Package privacy decides who may see which relations: whose lists of likes,
// favorites, followed users and followers are shown to whom, who may see the
// likers of a video, and which users and videos a viewer may be shown in a
// list. docs/privacy.md has the rules in words.
//
//	account, video and block events ──Apply──▶ privacy_* tables of the control database
//	(processors/privacyfeed)                           │
//	                              UserList, VideoList, Users, Videos ◀── api, at each read
//
// Whether a relation is stored, counted or indexed does not depend on any of
// this; what a list shows does, at the moment when it is read. So a user who
// hides a list, blocks someone or closes the account is not shown from the next
// read on, whatever is still on its way through the streams.
//
// Events carry a version of their subject, rising by any amount. What is not
// higher than the version that is stored changes nothing, so events may come
// twice and in any order (as I3 for relations). Rows stay for ever.
package privacy
