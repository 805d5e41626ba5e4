// Package reading plays users who change their relations over HTTP and ask for
// them all the time, and notes every answer that none of them may get.
//
// A user asks one thing at a time and is the only one who changes his relations,
// so that he knows every state that each of them ever had, and which is the newest.
// Of half of the questions he names, in minRelationVersions, the newest versions
// that he was told. A relation may be told late where it was not named; of an
// answer these are findings:
//
//   - state-wrong: a version with a state that it never had, or a version that
//     never was.
//   - state-below: less than what was named, or the truth marked as less.
//   - state-refused: neither an answer nor 503 or 429 with Retry-After, or nothing
//     within 10 s. A connection that is cut is none: the API's process may have
//     been killed.
package reading
