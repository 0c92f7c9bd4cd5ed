// SPDX-License-Identifier: Apache-2.0
// usage: ask MODEL: reads a text and asks about it, through the C API.
use std::ffi::{c_char, c_void, CStr, CString};
use std::ptr::null;

#[link(name = "episodic_c")]
extern "C" {
    fn episodic_last_error() -> *const c_char;
    fn episodic_model_load(path: *const c_char, reserved: *const c_void, model: *mut *mut c_void) -> i32;
    fn episodic_model_free(model: *mut c_void) -> i32;
    fn episodic_sequence_new(model: *mut c_void, sequence: *mut *mut c_void) -> i32;
    fn episodic_sequence_free(sequence: *mut c_void) -> i32;
    fn episodic_sequence_attach(sequence: *mut c_void, settings: *const c_char, max_tokens: i64) -> i32;
    fn episodic_sequence_read(sequence: *mut c_void, text: *const u8, length: usize, progress: *const c_void,
                              user: *const c_void, read: *mut i64) -> i32;
    fn episodic_sequence_ask(sequence: *mut c_void, question: *const u8, length: usize, options: *const c_void,
                             on_token: *const c_void, user: *const c_void, answer: *mut *mut c_void) -> i32;
    fn episodic_answer_text(answer: *mut c_void, text: *mut u8, capacity: usize, length: *mut usize) -> i32;
    fn episodic_answer_free(answer: *mut c_void) -> i32;
}

fn check(code: i32) {
    if code != 0 {
        panic!("{}", unsafe { CStr::from_ptr(episodic_last_error()) }.to_string_lossy());
    }
}

fn main() {
    let path = CString::new(std::env::args().nth(1).expect("usage: ask MODEL")).unwrap();
    let sentence = "The old man walked slowly to the river in the evening. ";
    let text = sentence.repeat(40)
        + "The pass key of Nora is 52871. Remember it. 52871 is the pass key of Nora. "
        + &sentence.repeat(110);
    let question = "\n\n\nWhat is the pass key of Nora?\n\nThe pass key of Nora is";
    unsafe {
        let (mut model, mut sequence, mut answer) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        check(episodic_model_load(path.as_ptr(), null(), &mut model));
        check(episodic_sequence_new(model, &mut sequence));
        check(episodic_sequence_attach(sequence, null(), 0));
        check(episodic_sequence_read(sequence, text.as_ptr(), text.len(), null(), null(), std::ptr::null_mut()));
        check(episodic_sequence_ask(sequence, question.as_ptr(), question.len(), null(), null(), null(), &mut answer));
        let mut length = 0;
        check(episodic_answer_text(answer, std::ptr::null_mut(), 0, &mut length));
        let mut bytes = vec![0u8; length + 1];
        check(episodic_answer_text(answer, bytes.as_mut_ptr(), bytes.len(), &mut length));
        println!("{}", String::from_utf8_lossy(&bytes[..length]));
        check(episodic_answer_free(answer));
        check(episodic_sequence_free(sequence));
        check(episodic_model_free(model));
    }
}
